"""The API servers against which every test of this package runs."""

import os
import secrets
from collections.abc import Generator, Iterator

import pytest

from aioresolve.testing import KubernetesServer, ThreadedKubernetesServer

from .control_plane import ASSETS_VARIABLE, ControlPlane, missing_assets
from .servers import USERS, ApiServer, EmbeddedServer, RealServer

CONTROL_PLANE = pytest.StashKey[ControlPlane]()

REAL = pytest.param(
    "control_plane",
    marks=pytest.mark.skipif(bool(missing_assets()), reason=missing_assets()),
)


@pytest.fixture(scope="session")
def embedded() -> Iterator[ThreadedKubernetesServer]:
    """The embedded server of the session, in its own thread."""
    tokens = {secrets.token_hex(16): user for user in ("admin", *USERS)}
    with KubernetesServer(tls=True, tokens=tokens, allow={}).in_thread() as running:
        yield running


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """The real control plane of the session."""
    with ControlPlane(os.environ[ASSETS_VARIABLE], users=USERS) as running:
        request.config.stash[CONTROL_PLANE] = running
        yield running


@pytest.fixture(params=["embedded", REAL])
async def server(request: pytest.FixtureRequest) -> ApiServer:
    """An API server with a namespace for the test, in which the user `limited` may read pods."""
    namespace, server = f"test-{secrets.token_hex(4)}", request.getfixturevalue(request.param)
    kind = EmbeddedServer if request.param == "embedded" else RealServer
    found = kind(server, namespace)
    await found.prepare()
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the control plane to the report of a failure against it."""
    report = yield
    running = item.config.stash.get(CONTROL_PLANE, None)
    if report.failed and running is not None and "control_plane" in item.name:
        report.sections.append(("kube-apiserver log", running.log("kube-apiserver")))
        report.sections.append(("etcd log", running.log("etcd", lines=10)))
    return report

"""A call can be cancelled at any of its awaits: it leaves nothing behind, and the next call works."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from aioresolve.testing import Answer

from .loopback import TOKEN, addresses, client_sockets, request_kind
from .stepping import cancel_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aioresolve.kubernetes import KubernetesClusterResolver

    from .loopback import Loopback

pytestmark = pytest.mark.usefixtures("quick_retries")

NAMES = ["train-0", "train-1", "train-2"]


@dataclass
class Scenario:
    """A resolver, a call to cancel, and the faults that the call meets."""

    loopback: Loopback
    resolver: KubernetesClusterResolver

    def prepare(self) -> None:
        """Prepare for one call."""

    async def call(self) -> Any:
        return await self.resolver.cluster_spec()


class RowsOfMany(Scenario):
    """Table rows for several selectors, in one task for each."""

    def __init__(self, loopback: Loopback) -> None:
        jobs = {"worker": ["app=train", "app=none"], "ps": "tier"}
        super().__init__(loopback, loopback.resolver(jobs))


class Retries(Scenario):
    """An overloaded server, so that the call waits between attempts."""

    def prepare(self) -> None:
        self.loopback.server.clear_faults()
        self.loopback.server.inject(Answer(503), times=2)


class Renewal(Scenario):
    """A 401, after which the credentials are read again."""

    def prepare(self) -> None:
        self.loopback.server.clear_faults()
        self.loopback.server.inject(Answer(401), match=lambda request: request_kind(request) == "rows")


class Certificate(Scenario):
    """A client certificate, which an SSL context can only load from a file."""

    def __init__(self, loopback: Loopback) -> None:
        loopback.server.write_kubeconfig(loopback.kubeconfig, certificate_of="alice")
        super().__init__(loopback, loopback.resolver())


class Plugin(Scenario):
    """An exec plugin that prints the token. Each call uses a new resolver, which has not run it yet."""

    def __init__(self, loopback: Loopback) -> None:
        plugin = loopback.kubeconfig.with_name("plugin")
        credential = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": {"token": TOKEN},
        }
        plugin.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
        plugin.chmod(0o700)
        document = json.loads(loopback.kubeconfig.read_text())
        command = {"apiVersion": credential["apiVersion"], "command": str(plugin), "interactiveMode": "Never"}
        document["users"][0]["user"] = {"exec": command}
        loopback.kubeconfig.write_text(json.dumps(document))
        super().__init__(loopback, loopback.resolver())

    def prepare(self) -> None:
        self.resolver = self.loopback.resolver()


SCENARIOS: dict[str, Callable[[Loopback], Scenario]] = {
    "rows of several selectors": RowsOfMany,
    "retries": lambda loopback: Retries(loopback, loopback.resolver()),
    "renewal": lambda loopback: Renewal(loopback, loopback.resolver()),
    "certificate": Certificate,
    "plugin": Plugin,
}


@pytest.fixture
def scenario(
    request: pytest.FixtureRequest,
    loopback: Loopback,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Scenario]:
    monkeypatch.setattr("aioresolve.kubernetes.api.client.PAGE", 2)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    loopback.train(*NAMES)
    logger = logging.getLogger("asyncio")
    logger.addFilter(_is_not_about_a_handshake)
    yield SCENARIOS[request.param](loopback)
    logger.removeFilter(_is_not_about_a_handshake)


def _is_not_about_a_handshake(record: logging.LogRecord) -> bool:
    # uvloop closes the socket of a cancelled handshake, and then logs that the socket is closed.
    return not record.getMessage().startswith("Fatal error on SSL protocol")


@pytest.mark.parametrize("scenario", SCENARIOS, indirect=True)
async def test_call_can_be_cancelled_at_any_await_and_again_while_it_cleans_up(scenario: Scenario) -> None:
    expected = [scenario.loopback.address(name) for name in NAMES]
    tasks, processes = asyncio.all_tasks(), psutil.Process().children()
    step, reached, spec = 0, True, None
    while reached:
        step += 1
        scenario.prepare()
        await cancel_at(step, scenario.call, times=2)
        scenario.prepare()
        reached, spec = await cancel_at(step, scenario.call)
        assert asyncio.all_tasks() == tasks, f"tasks left after step {step}"
        assert client_sockets(scenario.loopback) == 0, f"step {step}"
        assert not isinstance(scenario, Plugin) or psutil.Process().children() == processes, f"step {step}"
        assert list((scenario.loopback.kubeconfig.parent / "temporary").iterdir()) == []
        assert (spec is None) == reached, f"not cancelled at step {step}"
    assert step > 3
    assert spec is not None
    assert addresses(spec) == expected
    scenario.prepare()
    assert addresses(await scenario.call()) == expected


async def test_cancelled_call_does_not_affect_other_calls_of_its_pool(loopback: Loopback) -> None:
    loopback.train(*NAMES)
    expected = [loopback.address(name) for name in NAMES]
    async with loopback.resolver() as resolver:
        reached, step = True, 0
        while reached:
            step += 1
            other = asyncio.ensure_future(resolver.cluster_spec())
            reached, _ = await cancel_at(step, resolver.cluster_spec)
            assert addresses(await other) == expected
            assert addresses(await resolver.cluster_spec()) == expected

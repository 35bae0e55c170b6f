"""A call cancelled at any of its awaits: it ends as cancelled, leaves nothing, and the next one works."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from aioresolve.testing import Answer

from .loopback import TOKEN, addresses, client_sockets, kind_of
from .peer_clients import async_client, sync_client
from .stepping import cancelled_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aioresolve.kubernetes import KubernetesClusterResolver

    from .loopback import Loopback

pytestmark = pytest.mark.usefixtures("quick_retries")

NAMES = ["train-0", "train-1", "train-2"]


@dataclass
class Scene:
    """A resolver, a call to cancel, and what is to go wrong on the way."""

    loopback: Loopback
    resolver: KubernetesClusterResolver

    is_ours_to_close = True
    """Whether the sockets are the resolver's own."""

    def prepare(self) -> None:
        """Set the stage for one call."""

    def close(self) -> None:
        """Close what is not the resolver's."""

    async def call(self) -> Any:
        return await self.resolver.cluster_spec()


class Rows(Scene):
    """Rows of one selector: one task does it all."""


class RowsOfMany(Scene):
    """Rows of several selectors: a task for each."""

    def __init__(self, loopback: Loopback) -> None:
        jobs = {"worker": ["app=train", "app=none"], "ps": "tier"}
        super().__init__(loopback, loopback.resolver(jobs))


class ByName(Scene):
    """Rows, two of which do not say enough."""

    def __init__(self, loopback: Loopback) -> None:
        super().__init__(loopback, loopback.resolver())
        loopback.train("train-0", "train-1", waiting="CrashLoopBackOff")


class Pages(Scene):
    """A state, read in two pages."""

    async def call(self) -> Any:
        return (await self.resolver.cluster_state()).spec


class Retries(Scene):
    """An overloaded server, so that the call waits between attempts."""

    def prepare(self) -> None:
        self.loopback.server.clear_faults()
        self.loopback.server.inject(Answer(503), times=2)


class Renewal(Scene):
    """A 401, so that the credentials are read again."""

    def prepare(self) -> None:
        self.loopback.server.clear_faults()
        self.loopback.server.inject(Answer(401), match=lambda request: kind_of(request) == "rows")


class Certificate(Scene):
    """A client certificate, which goes into a TLS context by way of a file."""

    def __init__(self, loopback: Loopback) -> None:
        loopback.server.write_kubeconfig(loopback.kubeconfig, certificate_of="alice")
        super().__init__(loopback, loopback.resolver())


class Plugin(Scene):
    """An exec plugin, which prints the token. Each call is one of a resolver that has not run it yet."""

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


class InsideWith(Scene):
    """`async with` around two calls, the second of which finds a connection."""

    async def call(self) -> Any:
        async with self.resolver:
            await self.resolver.cluster_state()
            return await self.resolver.cluster_spec()


class AsyncClient(Scene):
    """A kubernetes_asyncio client, whose owner opens and closes it around the call."""

    is_ours_to_close = False

    async def call(self) -> Any:
        async with async_client(self.loopback) as client:
            return await self.loopback.resolver(override_client=client, kubeconfig=None).cluster_spec()


class SyncClient(Scene):
    """A synchronous kubernetes client, which is called in threads."""

    is_ours_to_close = False

    def __init__(self, loopback: Loopback) -> None:
        self.client = sync_client(loopback)
        super().__init__(loopback, loopback.resolver(override_client=self.client, kubeconfig=None))

    def close(self) -> None:
        self.client.close()
        del self.client, self.resolver


SCENES: dict[str, Callable[[Loopback], Scene]] = {
    "rows": lambda loopback: Rows(loopback, loopback.resolver()),
    "rows of many": RowsOfMany,
    "by name": ByName,
    "pages": lambda loopback: Pages(loopback, loopback.resolver()),
    "retries": lambda loopback: Retries(loopback, loopback.resolver()),
    "renewal": lambda loopback: Renewal(loopback, loopback.resolver()),
    "certificate": Certificate,
    "plugin": Plugin,
    "inside with": lambda loopback: InsideWith(loopback, loopback.resolver()),
    "async client": lambda loopback: AsyncClient(loopback, loopback.resolver()),
    "sync client": SyncClient,
}


@pytest.fixture
def scene(
    request: pytest.FixtureRequest,
    loopback: Loopback,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Scene]:
    monkeypatch.setattr("aioresolve.kubernetes.client.PAGE", 2)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    loopback.train(*NAMES)
    made = SCENES[request.param](loopback)
    logger = logging.getLogger("asyncio")
    logger.addFilter(_not_about_a_handshake)
    yield made
    made.close()
    deadline = time.monotonic() + 2.0
    while loopback.server.connections and time.monotonic() < deadline:
        # urllib3 closes the connections of a closed client when nobody holds it any more.
        gc.collect()
        time.sleep(0.01)
    logger.removeFilter(_not_about_a_handshake)


def _not_about_a_handshake(record: logging.LogRecord) -> bool:
    # uvloop closes the socket of a handshake that is cancelled, and then complains that it is closed.
    return not record.getMessage().startswith("Fatal error on SSL protocol")


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize("scene", SCENES, indirect=True)
async def test_a_call_may_be_cancelled_at_any_await(scene: Scene, times: int) -> None:
    expected = [scene.loopback.address(name) for name in NAMES]
    tasks = asyncio.all_tasks()
    step, reached, spec = 0, True, None
    while reached:
        step += 1
        scene.prepare()
        reached, spec = await cancelled_at(step, scene.call, times=times)
        assert asyncio.all_tasks() == tasks, f"tasks left after step {step}"
        assert not scene.is_ours_to_close or client_sockets(scene.loopback) == 0, f"step {step}"
        assert not isinstance(scene, Plugin) or psutil.Process().children() == [], f"step {step}"
        assert list((scene.loopback.kubeconfig.parent / "temporary").iterdir()) == []
        assert (spec is None) == reached, f"not cancelled at step {step}"
    assert step > 3
    assert spec is not None
    assert addresses(spec) == expected
    scene.prepare()
    assert addresses(await scene.call()) == expected


async def test_a_cancelled_call_leaves_the_others_of_its_pool_alone(loopback: Loopback) -> None:
    loopback.train(*NAMES)
    expected = [loopback.address(name) for name in NAMES]
    async with loopback.resolver() as resolver:
        reached, step = True, 0
        while reached:
            step += 1
            other = asyncio.ensure_future(resolver.cluster_spec())
            reached, _ = await cancelled_at(step, resolver.cluster_spec)
            assert addresses(await other) == expected
            assert addresses(await resolver.cluster_spec()) == expected

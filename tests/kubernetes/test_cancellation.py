"""A call can be cancelled at any of its awaits: it leaves nothing behind, and the next call works."""

import asyncio
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from aioresolve.testing import Answer

from .kubeconfigs import EXEC_V1, exec_user
from .loopback import TOKEN, Loopback, addresses, client_sockets, request_kind
from .stepping import cancel_at

pytestmark = pytest.mark.usefixtures("quick_retries")

NAMES = ["train-0", "train-1", "train-2"]


@pytest.fixture
def temporary(loopback: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, next to a server of which lists have small pages."""
    monkeypatch.setattr("aioresolve.kubernetes.api.client.PAGE", 2)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    loopback.add_trainers(*NAMES)
    logger = logging.getLogger("asyncio")
    logger.addFilter(_is_not_about_a_handshake)
    yield folder
    logger.removeFilter(_is_not_about_a_handshake)


def _is_not_about_a_handshake(record: logging.LogRecord) -> bool:
    # uvloop closes the socket of a cancelled handshake, and then logs that the socket is closed.
    return not record.getMessage().startswith("Fatal error on SSL protocol")


@pytest.mark.parametrize("scenario", ["several selectors", "retries", "renewal", "certificate", "plugin"])
async def test_call_can_be_cancelled_at_any_await_and_again_while_it_cleans_up(
    loopback: Loopback, temporary: Path, scenario: str
) -> None:
    if scenario == "certificate":  # which an SSL context can only load from a file
        loopback.server.write_kubeconfig(loopback.kubeconfig, certificate_of="alice")
    if scenario == "plugin":
        document = json.loads(loopback.kubeconfig.read_text())
        credential = {"apiVersion": EXEC_V1, "kind": "ExecCredential", "status": {"token": TOKEN}}
        document["users"][0]["user"] = exec_user("echo", args=[json.dumps(credential)])
        loopback.kubeconfig.write_text(json.dumps(document))
    jobs = {"worker": ["app=train", "app=none"], "ps": "tier"} if scenario == "several selectors" else None
    resolver = loopback.resolver(jobs)

    def prepare() -> None:
        nonlocal resolver
        loopback.server.clear_faults()
        if scenario == "retries":
            loopback.server.inject(Answer(503), times=2)
        if scenario == "renewal":
            loopback.server.inject(Answer(401), match=lambda request: request_kind(request) == "rows")
        if scenario == "plugin":  # a resolver runs it once
            resolver = loopback.resolver(jobs)

    async def call() -> Any:
        return await resolver.cluster_spec()

    expected = [loopback.address(name) for name in NAMES]
    tasks, processes = asyncio.all_tasks(), psutil.Process().children()
    step, reached, spec = 0, True, None
    while reached:
        step += 1
        prepare()
        await cancel_at(step, call, times=2)
        prepare()
        reached, spec = await cancel_at(step, call)
        assert asyncio.all_tasks() == tasks, f"tasks left after step {step}"
        assert client_sockets(loopback) == 0, f"step {step}"
        assert scenario != "plugin" or psutil.Process().children() == processes, f"step {step}"
        assert not os.listdir(temporary)
        assert (spec is None) == reached, f"not cancelled at step {step}"
    assert step > 3
    assert spec is not None
    assert addresses(spec) == expected
    prepare()
    assert addresses(await call()) == expected


async def test_cancelled_call_does_not_affect_other_calls_of_its_pool(loopback: Loopback) -> None:
    loopback.add_trainers(*NAMES)
    expected = [loopback.address(name) for name in NAMES]
    async with loopback.resolver() as resolver:
        reached, step = True, 0
        while reached:
            step += 1
            other = asyncio.ensure_future(resolver.cluster_spec())
            reached, _ = await cancel_at(step, resolver.cluster_spec)
            assert addresses(await other) == expected
            assert addresses(await resolver.cluster_spec()) == expected

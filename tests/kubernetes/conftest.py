"""Fixtures for tests of a resolver over real sockets."""

import importlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aioresolve._core.deadline import RetryPolicy

from .loopback import Loopback, disable_retries, run_loopback


@pytest.fixture
def loopback(no_leak: None, tmp_path: Path) -> Iterator[Loopback]:
    """A server without pods. After the test, all clients must be disconnected and everything closed."""
    with run_loopback(tmp_path) as loopback:
        yield loopback
        loopback.server.until(lambda: loopback.server.connections == 0)


@pytest.fixture(scope="session")
def imported_clients() -> None:
    """Import other clients and their lazy modules before an event loop runs: the imports take seconds."""
    importlib.import_module("kubernetes.client.api.core_v1_api")
    importlib.import_module("kubernetes_asyncio.client.api.core_v1_api")


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every list requested in pages of two pods, as after a list in one response failed."""

    def page(query: Any, limit: int | None, continue_: str) -> Any:
        return msgspec.structs.replace(query, limit=2, continue_=continue_)

    monkeypatch.setattr("aioresolve.kubernetes.api.queries.Query.page", page)


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits between attempts to milliseconds, unless the server requests a longer one."""
    quick = partial(RetryPolicy, first_wait=0.001, longest_wait=0.004)
    monkeypatch.setattr("aioresolve.kubernetes.api.client.RetryPolicy", quick)


@pytest.fixture
def no_retries(quick_retries: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the waits between attempts exceed every deadline, so that a call ends after one attempt."""
    disable_retries(monkeypatch)

"""The fixtures `source`, `changing` and `remote`: a test that uses one runs once for each resolver."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from aioresolve.resolver import this_task

from .sources import CHANGING, PREFIXES, REMOTE, SOURCES, Source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process the second worker, whatever the machine that runs the tests is."""
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(socket, "gethostname", lambda: "n1")
    monkeypatch.setattr(this_task, "local_addresses", lambda hosts: frozenset({"10.0.0.2"} & set(hosts)))


@pytest.fixture(params=SOURCES)
def source(own_process: None, request: Any, tmp_path: Path, monkeypatch: Any) -> Iterator[Source]:
    """A cluster of two workers, of which this process is the second, for each resolver."""
    with SOURCES[request.param](tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture(params=CHANGING)
def changing(own_process: None, request: Any, tmp_path: Path, monkeypatch: Any) -> Iterator[Source]:
    """The same for the resolvers whose cluster can change, and whose calls can fail."""
    with SOURCES[request.param](tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture(params=REMOTE)
def remote(own_process: None, request: Any, tmp_path: Path, monkeypatch: Any) -> Iterator[Source]:
    """The same for the resolvers that send requests."""
    with SOURCES[request.param](tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture
def one_remote(own_process: None, tmp_path: Path, monkeypatch: Any) -> Iterator[Source]:
    """The same for one of them, for tests of the code that they share."""
    with SOURCES["KubernetesClusterResolver"](tmp_path, monkeypatch) as found:
        yield found

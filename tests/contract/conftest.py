"""The fixtures `source`, `changing` and `remote`: a test that uses one runs once for each resolver."""

import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aioresolve.resolver import this_task

from .sources import CHANGING, REMOTE, SOURCES, Source


@pytest.fixture
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process the second worker, whatever the machine that runs the tests is."""
    monkeypatch.setattr(socket, "gethostname", lambda: "n1")
    monkeypatch.setattr(this_task, "local_addresses", lambda hosts: frozenset({"10.0.0.2"} & set(hosts)))


def each(names: Iterable[str]) -> Any:
    """Return a fixture: a cluster of two workers, of which this process is the second, for each resolver."""

    @pytest.fixture(params=names)
    def source(own_process: None, request: Any, tmp_path: Path, monkeypatch: Any) -> Iterator[Source]:
        with SOURCES[request.param](tmp_path, monkeypatch) as found:
            yield found

    return source


source = each(SOURCES)
changing = each(CHANGING)
remote = each(REMOTE)
one_remote = each(REMOTE[:1])  # for tests of the code that they share

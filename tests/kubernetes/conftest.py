"""What the tests of a resolver over real sockets share."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from aioresolve._core.retry import RetryPolicy

from .loopback import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .loopback import Loopback


@pytest.fixture
def loopback(no_leak: None, tmp_path: Path) -> Iterator[Loopback]:
    """A server of no pods yet. After the test all its clients have gone, and nothing is left."""
    with running(tmp_path) as loopback:
        yield loopback
        loopback.server.until(lambda: loopback.server.connections == 0)


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the waits between attempts a few milliseconds, where the server does not name its own."""
    quick = partial(RetryPolicy, first_wait=0.001, longest_wait=0.004)
    monkeypatch.setattr("aioresolve.kubernetes.client.RetryPolicy", quick)

"""How every test runs: on asyncio and on uvloop, in debug mode, with the loop's own complaints as errors."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SLOW_CALLBACK = 0.5
"""Seconds that a callback may hold the loop; on shared machines a tighter bound measures the neighbours."""

hypothesis.settings.register_profile("suite", deadline=None, print_blob=True)
hypothesis.settings.register_profile("long", deadline=None, print_blob=True, max_examples=2_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each async test on both loops."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": _asyncio_loop}
    try:
        import uvloop
    except ImportError:
        return factories
    return {**factories, "uvloop": uvloop.new_event_loop}


def _asyncio_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.slow_callback_duration = SLOW_CALLBACK
    return loop


class _Complaints(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture(autouse=True)
def _no_complaint_from_the_loop() -> Iterator[None]:
    """Fail a test in which asyncio logs a warning: a slow callback, a lost exception, a destroyed task."""
    complaints = _Complaints()
    logger = logging.getLogger("asyncio")
    logger.addHandler(complaints)
    try:
        yield
    finally:
        logger.removeHandler(complaints)
    assert not complaints.records, [record.getMessage() for record in complaints.records]


@pytest.fixture
def no_leak() -> Iterator[None]:
    """Fail a test that leaves a file, a socket or a thread behind."""
    import threading

    import psutil

    process = psutil.Process()

    def held() -> tuple[int, int, set[str]]:
        gc.collect()
        threads = {thread.name for thread in threading.enumerate() if "AnyIO" not in thread.name}
        return process.num_fds(), len(process.net_connections()), threads

    before = held()
    yield
    after = held()
    assert after[0] <= before[0], "file descriptors left open"
    assert after[1] <= before[1], "sockets left open"
    assert after[2] <= before[2], "threads left running"

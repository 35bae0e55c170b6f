"""How every test runs: on asyncio and on uvloop, in debug mode, with the loop's own complaints as errors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SLOW_CALLBACK = 1.0
"""Seconds that a callback may hold the loop; on shared machines a tighter bound measures the neighbours."""

SETTLING = 2.0
"""Seconds that threads, and servers in threads, have to end what a test began."""

hypothesis.settings.register_profile("suite", deadline=None, print_blob=True)
hypothesis.settings.register_profile("long", deadline=None, print_blob=True, max_examples=2_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


def pytest_configure() -> None:
    """Let processes that tests start hear Ctrl-C, even where a shell runs the tests in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each async test on both loops."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "asyncio": partial(_patient, asyncio.new_event_loop)
    }
    try:
        import uvloop
    except ImportError:
        return factories
    return {**factories, "uvloop": partial(_patient, uvloop.new_event_loop)}


def _patient(new_event_loop: Callable[[], asyncio.AbstractEventLoop]) -> asyncio.AbstractEventLoop:
    loop = new_event_loop()
    loop.slow_callback_duration = SLOW_CALLBACK
    return loop


class _Complaints(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not _is_uvloops_own(record):
            self.records.append(record)


def _is_uvloops_own(record: logging.LogRecord) -> bool:
    """Whether uvloop complains of itself: connecting was cancelled in the round that ended a TLS handshake.

    It does so whoever cancels it, by plain `loop.create_connection` as well, and leaves nothing behind.
    """
    error = record.exc_info[1] if record.exc_info else None
    return record.getMessage().startswith("Fatal error on SSL protocol\nprotocol: <uvloop.") and (
        isinstance(error, RuntimeError) and str(error).endswith("the handler is closed")
    )


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


@pytest.fixture(scope="session")
def _opened_for_good() -> None:
    """Open what the first loop of a process opens and never closes: libuv's pipe for signals."""
    try:
        import uvloop
    except ImportError:
        return
    uvloop.new_event_loop().close()


@pytest.fixture(scope="module", autouse=True)
def _what_is_imported_is_not_garbage() -> None:
    """Keep the collector from looking through every package of the run, which would hold the loop."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture
def no_leak(_opened_for_good: None) -> Iterator[None]:
    """Fail a test that leaves a file, a socket or a thread behind. It encloses the test's own loop.

    Threads end, and servers in threads see a client go, a little later: that is waited for. Nothing is left
    to the garbage collector.
    """
    before = _held()
    yield
    deadline = time.monotonic() + SETTLING
    while (left := _held() - before) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not left, f"left behind: {sorted(left)}"


def _held() -> set[str]:
    """Every thread and file descriptor of this process, in words."""
    held = {f"thread {thread.name} ({thread.ident})" for thread in threading.enumerate()}
    for descriptor in os.listdir("/dev/fd"):
        # One of them was the folder itself, and others may be closed meanwhile.
        with contextlib.suppress(OSError):
            status = os.fstat(int(descriptor))
            held.add(f"file descriptor {descriptor} (mode {status.st_mode:o}, inode {status.st_ino})")
    return held

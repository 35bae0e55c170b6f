"""Events between calls: retries, outages, restarts of watches; and the state of targets for gauges."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from .calls import error_extra, error_type, instruments, server_attributes, stale_since, task_counts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sized
    from datetime import datetime

watch_logger = logging.getLogger("aioresolve.watch")
retry_logger = logging.getLogger("aioresolve.retry")


class Outage:
    """Logs when a source becomes unavailable and when it is available again, but not each retry between.

    Args:
        logger: where the records go.
        source: the source, as text.
        extra: more about it, by the keys of `aioresolve._core.telemetry`: `server`, `scope`, `target`.
    """

    __slots__ = ("_extra", "_logger", "_source", "_started")

    def __init__(self, logger: logging.Logger, source: str, **extra: str) -> None:
        self._logger = logger
        self._source = source
        self._extra = extra
        self._started: float | None = None

    def update(self, error: Exception | None) -> None:
        """Note the outcome of a request to the source: its error, or None if it succeeded."""
        if error is not None and self._started is None:
            self._started = time.monotonic()
            extra = {**self._extra, **error_extra(error)}
            self._logger.warning("%s is unavailable: %s", self._source, extra["error"], extra=extra)
        elif error is None and self._started is not None:
            seconds = time.monotonic() - self._started
            self._started = None
            outage = {**self._extra, "seconds": seconds}
            self._logger.info("%s is available again after %.1f s", self._source, seconds, extra=outage)


def record_retry(error: Exception, *, attempt: int, wait: float) -> None:
    """Log and count a retry, `wait` seconds after the attempt with this number (from 1) and error."""
    server: str | None = getattr(error, "host", None)
    if retry_logger.isEnabledFor(logging.DEBUG):
        extra: dict[str, Any] = {**error_extra(error), "attempt": attempt, "wait": wait}
        if server is not None:
            extra["server"] = server
        retry_logger.debug(
            "attempt %d failed, retrying in %.3f s: %s", attempt, wait, extra["error"], extra=extra
        )
    metrics = instruments()
    if metrics is not None:
        attributes = {} if server is None else server_attributes(server)
        metrics.retries.add(1, {**attributes, "error.type": error_type(error)})


def record_watch_restart(server: str, scope: str, reason: str, *, seconds: float) -> None:
    """Log and count the restart of a watch whose last connection lived for `seconds`.

    `reason` is one of a small set: `ended`, `broken`, `silent`, `expired`, ...
    """
    if watch_logger.isEnabledFor(logging.INFO):
        extra = {"server": server, "scope": scope, "reason": reason, "seconds": seconds}
        watch_logger.info(
            "watch of %s at %s restarts after %.1f s: %s", scope, server, seconds, reason, extra=extra
        )
    metrics = instruments()
    if metrics is not None:
        metrics.restarts.add(1, {**server_attributes(server), "aioresolve.watch.reason": reason})


def record_members(tasks: Mapping[str, Sized], *, target: str | None = None) -> None:
    """Set the tasks of each job, which the gauge shows until `remove_target`.

    `target` is the name of the cluster in its fleet; None outside of a fleet.
    """
    task_counts[target] = {job: len(each) for job, each in tasks.items()}
    instruments()  # creates the gauge, if metrics are in use


def record_staleness(target: str, since: datetime | None) -> None:
    """Set the time since which a target is stale, None if it is not; the gauge grows from then on."""
    stale_since[target] = since
    instruments()


def remove_target(target: str | None = None) -> None:
    """Remove a target from the gauges."""
    task_counts.pop(target, None)
    stale_since.pop(target, None)

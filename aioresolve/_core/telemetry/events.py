"""What happens between calls: retries, outages, watches that begin again; and what is known of a target."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from .calls import error_type, server_attributes, words
from .otel import instruments, stale_since, task_counts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sized
    from datetime import datetime

__all__ = ["Outage", "forget", "members", "retried", "staleness", "watch_restarted"]

watch_logger = logging.getLogger("aioresolve.watch")
retry_logger = logging.getLogger("aioresolve.retry")


class Outage:
    """The time in which a source cannot be asked: told when it begins and when it ends, not at each retry.

    Args:
        logger: whose records they become.
        what: the source, in words.
        extra: what else is known of it, by the keys of `aioresolve.telemetry`: `server`, `scope`, `target`.
    """

    __slots__ = ("_began", "_extra", "_logger", "_what")

    def __init__(self, logger: logging.Logger, what: str, **extra: str) -> None:
        self._logger = logger
        self._what = what
        self._extra = extra
        self._began: float | None = None

    def note(self, error: Exception | None) -> None:
        """Note that the source has answered, or that it could not be asked because of `error`."""
        if error is not None and self._began is None:
            self._began = time.monotonic()
            extra = {**self._extra, "error": words(error), "error_type": error_type(error)}
            self._logger.warning("%s cannot be asked: %s", self._what, words(error), extra=extra)
        elif error is None and self._began is not None:
            seconds = time.monotonic() - self._began
            self._began = None
            self._logger.info(
                "%s answers again after %.1f s",
                self._what,
                seconds,
                extra={**self._extra, "seconds": seconds},
            )


def retried(error: Exception, *, attempt: int, wait: float) -> None:
    """Tell that a request is to be made again.

    Args:
        error: what the last attempt failed with.
        attempt: which one that was, from 1.
        wait: seconds until the next.
    """
    server: str | None = getattr(error, "host", None)
    if retry_logger.isEnabledFor(logging.DEBUG):
        extra: dict[str, Any] = {"error": words(error), "error_type": error_type(error)}
        extra |= {"attempt": attempt, "wait": wait} | ({} if server is None else {"server": server})
        retry_logger.debug(
            "attempt %d failed and is made again in %.3f s: %s", attempt, wait, words(error), extra=extra
        )
    told_to = instruments()
    if told_to is not None:
        where = {} if server is None else server_attributes(server)
        told_to.retries.add(1, {**where, "error.type": error_type(error)})


def watch_restarted(server: str, scope: str, reason: str, *, seconds: float) -> None:
    """Tell that a watch begins again.

    Args:
        server: the API server, `scheme://host:port`.
        scope: what is watched, in words.
        reason: why, one of few words: `ended`, `broken`, `silent`, `expired`, ...
        seconds: how long its last connection lived.
    """
    if watch_logger.isEnabledFor(logging.INFO):
        extra = {"server": server, "scope": scope, "reason": reason, "seconds": seconds}
        watch_logger.info(
            "watch of %s at %s begins again after %.1f s: %s", scope, server, seconds, reason, extra=extra
        )
    told_to = instruments()
    if told_to is not None:
        told_to.restarts.add(1, {**server_attributes(server), "aioresolve.watch.reason": reason})


def members(tasks: Mapping[str, Sized], *, target: str | None = None) -> None:
    """Tell the members of a cluster to the gauge, which shows them until they are told anew or forgotten.

    Args:
        tasks: by job, such as `ClusterState.endpoints`.
        target: the cluster's name in its fleet; None outside of one.
    """
    task_counts[target] = {job: len(each) for job, each in tasks.items()}
    instruments()


def staleness(target: str, since: datetime | None) -> None:
    """Tell since when what is known of a target is stale to the gauge, which then grows by itself.

    Args:
        target: its name in its fleet.
        since: that moment, with a time zone; None while the target answers.
    """
    stale_since[target] = since
    instruments()


def forget(target: str | None = None) -> None:
    """Take a target that is asked no more out of the gauges."""
    task_counts.pop(target, None)
    stale_since.pop(target, None)

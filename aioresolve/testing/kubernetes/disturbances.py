"""What befalls a watch that is connected already: an ERROR event, and everything that befalls a body."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aioresolve.errors import ConfigurationError
from aioresolve.testing.faults import Fault, Interruption

from .statuses import Failure, failure_of_status

if TYPE_CHECKING:
    from .requests import RequestRecord

__all__ = ["Disturbance", "RunningWatch", "WatchError", "checked_disturbance"]

_WATCH_EXPIRED = "The resourceVersion for the provided watch is too old."


@dataclass(frozen=True, slots=True)
class WatchError(Fault):
    """A watch ends with an ERROR event, long after its HTTP status was 200.

    Attributes:
        code: of the Status, such as 410, 429 or 500.
        reason: of the Status, such as `Expired`; None is the usual one of that code.
        retry_after: seconds, in the Status as `details.retryAfterSeconds`.
    """

    code: int
    reason: str | None = None
    retry_after: int | None = None

    @property
    def failure(self) -> Failure:
        """The failure that the event tells of."""
        failure = failure_of_status(self.code)
        if self.code == 410:
            failure.status["message"] = _WATCH_EXPIRED
        if self.reason is not None:
            failure.status["reason"] = self.reason
        if self.retry_after is not None:
            failure.status["details"] = {"retryAfterSeconds": self.retry_after}
        return failure


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What befalls a watch once it has told of everything up to `version`."""

    fault: Interruption | WatchError
    version: int


@dataclass(frozen=True, slots=True, eq=False)
class RunningWatch:
    """A watch that is connected, and what is to befall it, oldest first."""

    request: RequestRecord
    disturbances: deque[Disturbance] = field(default_factory=deque)


def checked_disturbance(fault: Fault) -> Interruption | WatchError:
    """`fault`, where it can befall a watch that is connected already.

    Raises:
        ConfigurationError: it comes before an answer, or in its place.
    """
    if isinstance(fault, Interruption | WatchError):
        return fault
    raise ConfigurationError(
        f"{fault!r} cannot befall a watch under way, which has been answered: inject() it, or give one of"
        " Cut, Delay, End, Reset, Stall and WatchError"
    )

"""Faults that only a Kubernetes API server has: endless lists, and watches that end with an ERROR event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioresolve.errors import ConfigurationError
from aioresolve.testing.faults import Fault, StreamFault

from .lists import ContinueToken, InvalidTokenError, Page
from .pods import pod
from .statuses import Failure, bad_request, failure_of_status
from .store import stored_object

if TYPE_CHECKING:
    from datetime import datetime

    from .options import ListOptions

_WATCH_EXPIRED = "The resourceVersion for the provided watch is too old."
_ENDLESS_VERSION = 1_000_000


@dataclass(frozen=True, slots=True)
class WatchError(Fault):
    """A watch ends with an ERROR event, after its HTTP status was 200.

    Attributes:
        code: the code of the Status, such as 410, 429 or 500.
        reason: the reason of the Status, such as `Expired`; None for the usual one of that code.
        retry_after: seconds, sent in the Status as `details.retryAfterSeconds`.
    """

    code: int
    reason: str | None = None
    retry_after: int | None = None

    @property
    def failure(self) -> Failure:
        """The failure that the event contains."""
        failure = failure_of_status(self.code)
        if self.code == 410:
            failure.status["message"] = _WATCH_EXPIRED
        if self.reason is not None:
            failure.status["reason"] = self.reason
        if self.retry_after is not None:
            failure.status["details"] = {"retryAfterSeconds": self.retry_after}
        return failure


@dataclass(frozen=True, slots=True)
class WatchFault:
    """A fault of a connected watch, applied when every event up to `version` has been sent."""

    fault: StreamFault | WatchError
    version: int


def validate_watch_fault(fault: Fault) -> StreamFault | WatchError:
    """Return `fault` if it can apply to a connected watch; otherwise raise a ConfigurationError."""
    if isinstance(fault, StreamFault | WatchError):
        return fault
    raise ConfigurationError(
        f"{fault!r} cannot apply to a watch that is already connected",
        hint="inject() it, or use one of Cut, Delay, End, Reset, Stall and WatchError.",
    )


@dataclass(frozen=True, slots=True)
class EndlessPages(Fault):
    """Every list is a page of running pods that do not exist, and there is always a next page.

    Inject it with `times=None`. The length of a page is the client's `limit`, or without one `page_size`
    pods; the pods have the labels that the selector requires.
    """

    page_size: int = 500


def endless_page(fault: EndlessPages, options: ListOptions, now: datetime) -> Page:
    """Return the page after the continue token of `options`, or the first."""
    first = 0
    if options.continue_token:
        try:
            start = ContinueToken.decode(options.continue_token).start
            first = int(start.rpartition("-")[2].rstrip("\0")) + 1
        except (InvalidTokenError, ValueError) as error:
            raise bad_request(f"invalid continue token: {error}") from None
    size = options.limit or fault.page_size
    namespace = options.selection.namespace or "default"
    requirements = options.selection.labels.requirements
    labels = {r.key: min(r.values) for r in requirements if r.operator in {"=", "in"}}
    names = [f"endless-{number:09}" for number in range(first, first + size)]
    pods = [stored_object(pod(name, namespace, labels=labels), _ENDLESS_VERSION, now) for name in names]
    prefix = "" if options.selection.namespace else f"{namespace}/"
    token = ContinueToken(_ENDLESS_VERSION, f"{prefix}{names[-1]}\0").encode()
    metadata = {"resourceVersion": str(_ENDLESS_VERSION), "continue": token, "remainingItemCount": 1_000_000}
    return Page(pods, metadata)

"""A fault of lists alone: a chain of continue tokens that never ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioresolve.testing.faults import Fault

from .lists import ContinueToken, InvalidTokenError, Page
from .pods import pod
from .statuses import bad_request
from .store import stored_pod

if TYPE_CHECKING:
    from datetime import datetime

    from .options import ListOptions

__all__ = ["EndlessPages", "endless_page"]

_VERSION = 1_000_000


@dataclass(frozen=True, slots=True)
class EndlessPages(Fault):
    """Every list is a page of running pods that do not exist, and there is always a next page.

    Inject it with `times=None`. A page is as long as the client's `limit`, without one `page_size` pods
    long; the pods carry the labels that the selector asks for.
    """

    page_size: int = 500


def endless_page(fault: EndlessPages, options: ListOptions, now: datetime) -> Page:
    """The page that follows the continue token of `options`, or the first.

    Raises:
        Failure: 400, the token is none.
    """
    first = 0
    if options.continue_token:
        try:
            start = ContinueToken.decoded(options.continue_token).start
            first = int(start.rpartition("-")[2].rstrip("\0")) + 1
        except (InvalidTokenError, ValueError) as error:
            raise bad_request(f"invalid continue token: {error}") from None
    size = options.limit or fault.page_size
    namespace = options.selection.namespace or "default"
    requirements = options.selection.labels.requirements
    labels = {r.key: min(r.values) for r in requirements if r.operator in {"=", "==", "in"}}
    names = [f"endless-{number:09}" for number in range(first, first + size)]
    pods = [stored_pod(pod(name, namespace, labels=labels), _VERSION, now) for name in names]
    prefix = "" if options.selection.namespace else f"{namespace}/"
    token = ContinueToken(_VERSION, f"{prefix}{names[-1]}\0").encoded()
    return Page(pods, {"resourceVersion": str(_VERSION), "continue": token, "remainingItemCount": 1_000_000})

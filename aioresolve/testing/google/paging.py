"""Pages of a list: the names of one, and the token of the next."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from aioresolve.testing.google.statuses import bad_page_token

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["page"]

_START = "after "


def page(names: Sequence[str], query: Mapping[str, str], size: str, largest: int) -> tuple[list[str], str]:
    """The names of the page that `query` asks for, and the token of the next one, empty after the last.

    Args:
        names: every name, in order.
        query: the URL's query.
        size: the name of the parameter that says how many a page holds.
        largest: how many a page holds at most.

    Raises:
        Failure: the token is none of ours, or the size is no number.
    """
    try:
        wanted = int(query.get(size) or 0)
        after = base64.b64decode(query.get("pageToken", ""), altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error) as error:
        raise bad_page_token() from error
    if after and not after.startswith(_START):
        raise bad_page_token()
    left = [name for name in names if name > after.removeprefix(_START)]
    count = min(wanted or largest, largest)
    token = base64.urlsafe_b64encode(f"{_START}{left[count - 1]}".encode()).decode() if left[count:] else ""
    return left[:count], token

"""What is said on stderr of a source that is followed: that it cannot be asked, and that it can again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioresolve.cli.error_messages import error_message
from aioresolve.cli.output.formats import instant, one_line

from . import streams

if TYPE_CHECKING:
    from aioresolve.spec import Observation

__all__ = ["Notes"]


class Notes:
    """Says what is new, and nothing twice in a row; nothing at all where it is quiet."""

    def __init__(self, *, quiet: bool) -> None:
        self._is_quiet = quiet
        self._error = ""

    def tell(self, observation: Observation) -> None:
        """Say what is wrong with the source, or that all is well again."""
        error = "" if observation.error is None else error_message(observation.error)
        if error == self._error:
            return
        if error:
            since = instant(observation.stale_since)
            self.say(f"not up to date{f' since {since}' if since else ''}; trying again: {error}")
        else:
            self.say("up to date again")
        self._error = error

    def say(self, text: str) -> None:
        """Say `text`, on a line of its own."""
        if not self._is_quiet:
            streams.complain(f"{one_line(text)}\n")

"""Shows the progress of `pytest -q` as a bar in one line, in place of a letter for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

WIDTH = 50
"""The width of the bar in characters."""


class ProgressBar:
    """A plugin for pytest: in a terminal a bar with numbers, elsewhere one line that grows."""

    def __init__(self, session: pytest.Session, reporter: pytest.TerminalReporter) -> None:
        self._session = session
        self._terminal = reporter
        self._is_terminal = reporter.isatty()
        reporter._show_progress_info = False  # the percentages at the ends of lines
        self._ended = self._failed = 0
        self._shown = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, tuple[str, ...], tuple[str, ...]]:
        category, _, word = yield
        return category, "", word

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed += report.failed
        if report.when == "teardown":  # each test has one, even if its set-up fails
            self._ended += 1
            self._show()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if self._shown:
            self._terminal.write("\n")

    def _show(self) -> None:
        total = max(self._session.testscollected, self._ended)
        bar = "#" * (self._ended * WIDTH // total)
        if self._is_terminal:
            failures = f", {self._failed} failed" if self._failed else ""
            text = f"[{bar:.<{WIDTH}}] {self._ended} of {total} tests{failures}"
            self._terminal.rewrite(text, erase=True)
        else:
            text = bar
            self._terminal.write(text.removeprefix(self._shown), flush=True)
        self._shown = text

"""Formats figures as text: tables, durations, sizes, and the limits that the figures have to meet."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "RESULTS",
    "Bar",
    "bar_table",
    "duration",
    "environment",
    "format_table",
    "ratio",
    "size",
    "write_json",
]

RESULTS = Path(__file__).resolve().parent / "results"
"""The folder for plots and raw figures; it is not committed."""

MEGABYTE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A limit for a time, size or ratio.

    Attributes:
        what: a description of the figure.
        measured: the measured value, in `unit`.
        least: the lower limit, if there is one.
        most: the upper limit, if there is one.
        unit: the text after the numbers: `x` for a ratio, ` ms`, ` MB`.
    """

    what: str
    measured: float
    least: float | None = None
    most: float | None = None
    unit: str

    @property
    def holds(self) -> bool:
        """Whether the measured value is within the limit."""
        return (self.least is None or self.measured >= self.least) and (
            self.most is None or self.measured <= self.most
        )

    @property
    def promise(self) -> str:
        """The limit as text."""
        if self.least is not None:
            return f"at least {self.least:g}{self.unit}"
        return f"at most {self.most:g}{self.unit}"


def bar_table(bars: Iterable[Bar]) -> str:
    """Return a table of the limits, the measured values, and whether they are within the limits."""
    rows = [
        (bar.what, bar.promise, f"{_digits(bar.measured)}{bar.unit}", "yes" if bar.holds else "NO")
        for bar in bars
    ]
    return format_table(("figure", "limit", "measured", "within"), rows)


def format_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a text table; the first column is aligned left, the others, which hold numbers, right."""
    lines = [tuple(columns), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(
            [
                line[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
            ]
        )
        + "\n"
        for line in lines
    )


def duration(seconds: float) -> str:
    """Format seconds: `12.3 ms`, `4.56 s`."""
    return f"{_digits(seconds * 1e3)} ms" if seconds < 0.9995 else f"{_digits(seconds)} s"


def size(bytes_: float) -> str:
    """Format bytes as megabytes (1 MB is 1,000,000 bytes)."""
    return f"{bytes_ / MEGABYTE:.0f} MB"


def ratio(value: float, reference: float) -> str:
    """Format `value / reference`."""
    return f"{_digits(value / reference)}x"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"


def environment(packages: Iterable[str]) -> dict[str, str]:
    """Describe the environment: the machine, Python, and the versions of `packages`."""
    found = {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "load": f"{os.getloadavg()[0]:.1f} at the start",
        "python": platform.python_version(),
    }
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def write_json(name: str, figures: Any) -> Path:
    """Write the raw figures into `RESULTS`, and return the path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(figures, indent=2) + "\n")
    return path

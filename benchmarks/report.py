"""Figures as text: aligned tables, times and sizes as people read them, bars and whether they hold."""

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

__all__ = ["RESULTS", "Bar", "aligned", "bar_table", "duration", "environment", "ratio", "size", "write_json"]

RESULTS = Path(__file__).resolve().parent / "results"
"""Where plots and raw figures go; it is not part of the repository."""

MEGABYTE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One promise about speed or size.

    Attributes:
        what: what is compared with what.
        measured: what came out, in `unit`.
        least: the lower limit, if that is what is promised.
        most: the upper limit, if that is.
        unit: what stands behind the numbers: `x` for a ratio, ` ms`, ` MB`.
    """

    what: str
    measured: float
    least: float | None = None
    most: float | None = None
    unit: str

    @property
    def holds(self) -> bool:
        """Whether the promise is kept."""
        return (self.least is None or self.measured >= self.least) and (
            self.most is None or self.measured <= self.most
        )

    @property
    def promise(self) -> str:
        """The promise in words."""
        if self.least is not None:
            return f"at least {self.least:g}{self.unit}"
        return f"at most {self.most:g}{self.unit}"


def bar_table(bars: Iterable[Bar]) -> str:
    """Return the bars as a table: what, promise, measured, whether it holds."""
    rows = [
        (bar.what, bar.promise, f"{_digits(bar.measured)}{bar.unit}", "yes" if bar.holds else "NO")
        for bar in bars
    ]
    return aligned(("bar", "promise", "measured", "holds"), rows)


def aligned(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in columns: the first one flush left, the others, of numbers, flush right."""
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
    """Return seconds as people read them: `12.3 ms`, `4.56 s`."""
    return f"{_digits(seconds * 1e3)} ms" if seconds < 0.9995 else f"{_digits(seconds)} s"


def size(bytes_: float) -> str:
    """Return bytes in MB of a million."""
    return f"{bytes_ / MEGABYTE:.0f} MB"


def ratio(value: float, reference: float) -> str:
    """Return how many times `reference` the value is."""
    return f"{_digits(value / reference)}x"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"


def environment(packages: Iterable[str]) -> dict[str, str]:
    """Return what the figures depend on: the machine, Python, and the versions of `packages`."""
    found = {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "load": f"{os.getloadavg()[0]:.1f} when begun",
        "python": platform.python_version(),
    }
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def write_json(name: str, figures: Any) -> Path:
    """Write the raw figures into `RESULTS`, and return where they are."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(figures, indent=2) + "\n")
    return path

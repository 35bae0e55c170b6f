"""Plots figures with matplotlib, as PNG and SVG files in `results/`."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.report import RESULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["Panel", "plot_bars"]

OURS, THEIRS = "#0b7a5c", "#9aa0a8"


@dataclass(frozen=True, slots=True)
class Panel:
    """A bar chart with one bar per peer.

    Attributes:
        title: the measured quantity.
        values: the name of each peer to its value, which is above zero; bars of aioresolve are highlighted.
        label: formats a value as the label of its bar.
    """

    title: str
    values: Mapping[str, float]
    label: Callable[[float], str]


def plot_bars(name: str, title: str, rows: Sequence[Sequence[Panel]]) -> list[Path]:
    """Draw rows with the same number of panels; return the files (none if matplotlib is not installed)."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    height = sum(0.9 + 0.28 * max(len(panel.values) for panel in row) for row in rows)
    figure, grid = plt.subplots(
        len(rows),
        len(rows[0]),
        figsize=(4.2 * len(rows[0]) + 2.4, height + 0.5),
        squeeze=False,
        layout="constrained",
        sharey="row",
    )
    figure.suptitle(f"{title} (logarithmic scales)", fontsize=11)
    for row, axes_of_row in zip(rows, grid, strict=True):
        for panel, axes in zip(row, axes_of_row, strict=True):
            names = list(panel.values)
            values = list(panel.values.values())
            colors = [OURS if "aioresolve" in each else THEIRS for each in names]
            bars = axes.barh(names, values, color=colors, height=0.7)
            axes.bar_label(bars, [panel.label(value) for value in values], padding=3, fontsize=8)
            axes.set_xscale("log")
            axes.set_xlim(min(values) / 2, max(values) * 6)
            axes.set_title(panel.title, fontsize=9, loc="left")
            axes.tick_params(labelsize=8)
            axes.xaxis.set_visible(False)
            axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes_of_row[0].invert_yaxis()
    RESULTS.mkdir(exist_ok=True)
    files = [RESULTS / f"{name}.{form}" for form in ("png", "svg")]
    for file in files:
        figure.savefig(file, dpi=150)
    plt.close(figure)
    return files

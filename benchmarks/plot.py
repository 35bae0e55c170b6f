"""Plots figures with matplotlib, as PNG and SVG files in `results/`."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.report import RESULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["Panel", "plot_bars", "plot_growth"]

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
    plt = _pyplot(name)
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
    return _save(figure, name)


def plot_growth(name: str, title: str, panels: Mapping[str, Mapping[str, Mapping[int, float]]]) -> list[Path]:
    """Draw one panel per quantity, with one line per peer; return the files.

    Args:
        name: the name of the files.
        title: the title of the figure.
        panels: the title of each panel to the name of each peer to its value at each number of pods.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return []
    plt = _pyplot(name)
    figure, grid = plt.subplots(
        1, len(panels), figsize=(4.6 * len(panels) + 2.6, 4), squeeze=False, layout="constrained"
    )
    figure.suptitle(f"{title} (logarithmic scales)", fontsize=11)
    for axes, (quantity, peers) in zip(grid[0], panels.items(), strict=True):
        for peer, values in peers.items():
            style = "-" if "aioresolve" in peer else "--"
            axes.plot(list(values), list(values.values()), f"o{style}", label=peer, markersize=4)
        axes.set_xscale("log")
        axes.set_yscale("log")
        sizes = sorted({size for values in peers.values() for size in values})
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], minor=False)
        axes.set_xticks([], minor=True)
        axes.set_xlabel("pods", fontsize=8)
        axes.set_title(quantity, fontsize=9, loc="left")
        axes.tick_params(labelsize=8)
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return _save(figure, name)


def _pyplot(name: str) -> Any:
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": name}  # small files, equal if the figures are
    from matplotlib import pyplot as plt

    return plt


def _save(figure: Any, name: str) -> list[Path]:
    """Write the figure to `results/` and close it."""
    from matplotlib import pyplot as plt

    RESULTS.mkdir(exist_ok=True)
    files = [RESULTS / f"{name}.{form}" for form in ("png", "svg")]
    for file in files:
        metadata = {"Date": None} if file.suffix == ".svg" else {}
        figure.savefig(file, dpi=150, metadata=metadata)
    plt.close(figure)
    return files

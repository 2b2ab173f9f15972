"""Plot results of benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.measure import RESULTS


class Curve(NamedTuple):
    """Points to connect, with line style "-" or "--"; related curves share a colour number."""

    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    style: str = "-"


class Panel(NamedTuple):
    """One pair of axes."""

    x_label: str
    y_label: str
    curves: Mapping[str, Curve]
    log_x: bool = False
    log_y: bool = False


def draw(name: str, title: str, panels: Sequence[Panel]) -> Path:
    """Draw panels side by side into results/NAME.svg."""
    import matplotlib as mpl  # takes a second, and most who import this draw nothing
    from matplotlib.figure import Figure

    # the same run gives the same file, byte for byte
    mpl.rcParams["svg.hashsalt"] = "izwi"
    figure = Figure(figsize=(5.4 * len(panels), 4.2), layout="constrained")
    figure.suptitle(title, fontsize=11)
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), place + 1)
        for label, (x, y, colour, style) in panel.curves.items():
            axes.plot(x, y, style, color=f"C{colour}", label=label, linewidth=1.4)
        axes.set_xlabel(panel.x_label)
        axes.set_ylabel(panel.y_label)
        if panel.log_x:
            axes.set_xscale("log")
        if panel.log_y:
            axes.set_yscale("log")
        axes.grid(visible=True, which="both", alpha=0.25)
        axes.legend(fontsize=8)
    path = RESULTS / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    print(f"drawn to {path}")
    return path


def shares(seconds: Sequence[float], colour: int = 0, style: str = "-") -> Curve:
    """Return, for each time in milliseconds, the share of requests that waited no longer."""
    waited = np.sort(np.asarray(seconds)) * 1e3
    return Curve(
        waited.tolist(), (np.arange(1, len(waited) + 1) / len(waited)).tolist(), colour, style
    )

"""The chart of a comparison: a bar per contender, shortest first, with its spread."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

OURS, THEIRS, INK = "#d9541e", "#9db4c0", "#253237"
CUT = 1.6
"""A bar more than this many times as long as the next one is cut off; its label has the figure."""


def shown_to(values: Sequence[float]) -> float:
    """Return the end of the axis: beyond the longest bar, unless it would dwarf all others.

    >>> shown_to([2.0, 5.0, 6.0]), shown_to([2.0, 5.0, 60.0])
    (6.0, 8.0)
    """
    ordered = sorted(values)
    if len(ordered) < 2 or ordered[-1] <= CUT * ordered[-2]:
        return ordered[-1]
    return CUT * ordered[-2]


def bars(path: Path, figures: Mapping[str, Sequence[float]], ours: Collection[str]) -> None:
    """Draw CPU-seconds per million records as SVG or PNG, by the file's suffix.

    Args:
        path: the file.
        figures: what was measured of each contender, by name.
        ours: the names that stand out.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    names = sorted(figures, key=lambda name: statistics.median(figures[name]))
    middles = [statistics.median(figures[name]) for name in names]
    end = shown_to(middles)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "downspout", "font.size": 10}):
        figure = Figure(figsize=(9, 0.8 + 0.42 * len(names)), layout="constrained")
        axes = figure.subplots()
        colours = [OURS if name in ours else THEIRS for name in names]
        axes.barh(names, [min(middle, end) for middle in middles], color=colours)
        for place, (name, middle) in enumerate(zip(names, middles, strict=True)):
            low, high = min(figures[name]), min(max(figures[name]), end)
            if middle <= end:
                axes.plot([low, high], [place, place], color=INK, linewidth=1.2)
            figure_text = f"{middle:.1f}" if middle <= end else f"{middle:.1f}, cut off"
            axes.annotate(figure_text, (max(min(middle, end), high), place), (5, 0), textcoords="offset points",
                          va="center", color=INK)  # fmt: skip
        axes.invert_yaxis()
        axes.set_xlim(0, end * 1.2)
        axes.set_xlabel("CPU-seconds per million records (less is better)")
        axes.spines[["top", "right"]].set_visible(False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=100)

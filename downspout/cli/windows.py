"""``downspout windows``: show which windows of a directory are final or open, and which have late rows."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from downspout.cli.arguments import exit_codes, sink_place
from downspout.formatting import columns, counted

if TYPE_CHECKING:
    from downspout.sink.snapshot import WindowReport, WindowRow

SHOWN_MAX = 20


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "windows",
        help="show which windows of event time are final or open, and which have late rows",
        description="Show the windows in the directory of an AggregateBolt with a window among its keys: open windows, "
        "final windows that received late rows, and the position of each partition. read_table(…, closed=True) and the "
        "readers for PySpark return the windows that are final here.",
        epilog=exit_codes(_2="the rows have no windows", _7="the directory is not a sink's, or is damaged"),
    )
    parser.add_argument("directory", type=sink_place, metavar="DIR", help="the sink's directory (parquet.directory)")
    parser.add_argument(
        "--all", action="store_true", help=f"show final windows too, and more than the last {SHOWN_MAX}"
    )
    parser.add_argument("--json", action="store_true", help="print all windows as JSON")
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    """Print the windows."""
    from downspout.sink.snapshot import read_windows

    report = read_windows(arguments.directory)
    if arguments.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        print("\n".join([f"{arguments.directory}: {_summary(report)}", *_lines(report, every=arguments.all)]))
    return 0


def _summary(report: WindowReport) -> str:
    final = sum(row.final for row in report.windows)
    until = "nothing is final yet" if report.watermark is None else f"final until {_moment(report.watermark)}"
    told = [until, f"{final:,} final", f"{len(report.windows) - final:,} open"]
    if late := [row for row in report.windows if row.late_rows]:
        rows = counted(sum(row.late_rows for row in late), "late row")
        told.append(f"{rows} in {counted(len(late), 'window')}")
    return "; ".join(told)


def _lines(report: WindowReport, *, every: bool) -> list[str]:
    found = [row for row in report.windows if every or not row.final or row.late_rows]
    shown = found if every else found[-SHOWN_MAX:]
    table = [["window", "until", "state", "rows", "late"], *map(_row, shown)]
    lines = columns(table, {3, 4}) if shown else []
    if len(found) > len(shown):
        lines.append(f"and {counted(len(found) - len(shown), 'earlier one')}: --all")
    places = [[f"{topic or '(no origin)'}[{number}]", _moment(at)] for (topic, number), at in report.partitions.items()]
    return [*lines, *columns([["partition", "has come to"], *places], set())]


def _row(row: WindowRow) -> list[str]:
    rows = "" if row.rows is None else f"{row.rows:,}"
    return [_moment(row.start), _moment(row.end), "final" if row.final else "open", rows, f"{row.late_rows:,}"]


def _moment(at: datetime | None) -> str:
    return "no time" if at is None else f"{at:%Y-%m-%d %H:%M:%S}".removesuffix(":00")

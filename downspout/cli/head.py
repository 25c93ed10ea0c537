"""``downspout head``: show the last rows of a sink's directory, as a table or as JSON."""

from __future__ import annotations

import argparse
import json
from datetime import date, datetime, time
from typing import Any

from downspout.cli.arguments import exit_codes, positive, sink_place
from downspout.cli.terminal import as_text, printable
from downspout.formatting import columns

CELL_MAX = 40
"""Longest value in the table; ``--json`` prints values whole."""


def add_parser(commands: Any) -> None:
    """Add the command."""
    text = "show the last rows of a sink's directory"
    parser = commands.add_parser(
        "head", help=text,
        description=f"{text[0].upper()}{text[1:]}: those of the newest files in its commit log. After a "
        "compaction, these are the merged files.",
        epilog=exit_codes(_0="shown", _7="the directory is not a sink's, or is damaged"),
    )  # fmt: skip
    parser.add_argument("directory", type=sink_place, metavar="DIR", help="the sink's directory (parquet.directory)")
    parser.add_argument("-n", type=positive, default=10, metavar="ROWS", help="how many rows (default: 10)")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each row")
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    """Print the rows."""
    names, rows = last_rows(arguments.directory, arguments.n)
    if arguments.json:
        for row in rows:
            print(json.dumps(dict(zip(names, row, strict=True)), default=plain, ensure_ascii=False))
        return 0
    cells = [[cell(value) for value in row] for row in rows]
    numbers = {at for at in range(len(names)) if any(_is_number(row[at]) for row in rows)}
    for line in columns([names, *cells], numbers):
        print(line)
    return 0


def last_rows(directory: Any, count: int) -> tuple[list[str], list[list[Any]]]:
    """Return the columns of a directory, and its last rows in the order of its log. O(rows of their files).

    Raises:
        SinkError: the directory does not exist, has no log, or is damaged.
    """
    import pyarrow as pa

    from downspout.sink.snapshot import ORIGIN_COLUMNS, View, read_files

    view = View.of(directory)
    names = [name for name in view.schema.names if name not in ORIGIN_COLUMNS]
    files, found = list(view.files), 0
    while files and found < count:
        found += files[-1].rows
        files.pop()
    shown = [view.schema.field(name) for name in names]
    table = pa.Table.from_batches(read_files(view, view.files[len(files) :], names), pa.schema(shown))
    return names, [list(row.values()) for row in table.slice(max(0, table.num_rows - count)).to_pylist()]


def plain(value: Any) -> Any:
    """Return a value that JSON cannot represent as text: bytes escaped, times in ISO 8601, others by ``str``."""
    if isinstance(value, bytes):
        return as_text(value)
    return value.isoformat() if isinstance(value, date | datetime | time) else str(value)


def cell(value: Any) -> str:
    """Return a value as a cell of the table.

    >>> cell(None), cell("a\\nb"), cell([1, None]), cell("x" * 50) == "x" * 39 + "…"
    ('', 'a\\\\nb', '[1, null]', True)
    """
    if value is None:
        return ""
    is_nested = isinstance(value, list | dict)
    text = json.dumps(value, default=plain, ensure_ascii=False) if is_nested else value
    text = printable(text if isinstance(text, str) else str(plain(text)))
    return text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

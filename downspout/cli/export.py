"""``downspout export``: copy new rows of a sink's directory, by its commit log, to a Delta or Iceberg table."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout.cli.arguments import exit_codes, seconds, sink_place
from downspout.errors import ConfigError
from downspout.formatting import counted

if TYPE_CHECKING:
    from downspout.tables.export import Export, Exported, Target

EVERY_S = 10.0


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "export",
        help="keep a Delta or an Iceberg table in step with a sink's directory",
        description="Add to a Delta or Iceberg table all rows of a sink's directory that it lacks, each once, in one "
        "commit. It is safe while topologies write to the directory, while it is compacted, and while "
        "other exports run, and may be stopped at any moment.",
        epilog=exit_codes(
            _0="the table has all rows",
            _7="the directory is not a sink's or is damaged; the table belongs to another directory, or others have "
            "changed it",
            _130="stopped by Ctrl-C; nothing needs to be repaired",
        ),
    )
    parser.add_argument("directory", type=sink_place, metavar="DIR", help="the sink's directory (parquet.directory)")
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--delta", action="store_true", help="a Delta table, with the directory's folders as partitions")
    form.add_argument("--iceberg", action="store_true", help="an Iceberg table")
    parser.add_argument(
        "--to", metavar="PLACE",
        help="location of the table, or for Iceberg of the catalogue's warehouse (default: DIR.delta or DIR.iceberg)",
    )  # fmt: skip
    parser.add_argument(
        "--catalog", metavar="NAME|URL",
        help="Iceberg: a catalogue of pyiceberg's configuration, or the URL of a database for a SQL catalogue "
        "(default: a SQLite file in the warehouse)",
    )  # fmt: skip
    parser.add_argument(
        "--table", metavar="NAMESPACE.NAME", help="Iceberg: the table (default: downspout.<the directory's name>)"
    )
    parser.add_argument("--no-origins", action="store_true", help="omit the columns with each row's source record")
    parser.add_argument(
        "--follow", action="store_true", help="keep running until Ctrl-C, and export new rows as they appear"
    )
    parser.add_argument(
        "--every",
        type=seconds,
        metavar="TIME",
        help="with --follow: how long to wait between two exports (default: 10s)",
    )
    parser.add_argument(
        "--accept-changes", action="store_true", help="continue although others have changed rows of the table"
    )
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each commit")
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    """Export, and print a summary."""
    from downspout.cli.compare import sigterm_as_ctrl_c
    from downspout.cli.terminal import log_to_stderr
    from downspout.tables.export import Export

    _check(arguments)
    log_to_stderr(quiet=True)
    target = _target(arguments)
    export = Export(
        arguments.directory,
        target,
        origins=not arguments.no_origins,
        accept_changes=arguments.accept_changes,
        say=lambda line: print(f"downspout: {line}", file=sys.stderr, flush=True),
    )
    with sigterm_as_ctrl_c():
        if not arguments.follow:
            _show(arguments, target, export.step())
        else:
            _follow(arguments, target, export)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    for option in ("catalog", "table"):
        if arguments.delta and getattr(arguments, option):
            raise ConfigError(f"--{option} goes with --iceberg", cure="--to, for a Delta table")
    if arguments.every and not arguments.follow:
        raise ConfigError("--every goes with --follow", cure="--follow --every 10s")
    if arguments.table and "." not in arguments.table.strip("."):
        raise ConfigError(f"--table {arguments.table} has no namespace", cure=f"--table downspout.{arguments.table}")


def _target(arguments: argparse.Namespace) -> Target:
    directory: Path = arguments.directory
    place = arguments.to or f"{directory}.{'delta' if arguments.delta else 'iceberg'}"
    if arguments.delta:
        from downspout.sink.log import logged_columns
        from downspout.sink.schema import logged_folders
        from downspout.tables.delta import DeltaTarget

        return DeltaTarget(place, logged_folders(logged_columns(directory) or ()))
    from downspout.tables.iceberg import IcebergTarget, open_catalog

    return IcebergTarget(open_catalog(arguments.catalog, place), arguments.table or f"downspout.{directory.name}")


def _follow(arguments: argparse.Namespace, target: Target, export: Export) -> None:
    while True:
        if (done := export.step()) is not None:
            _show(arguments, target, done)
        else:
            time.sleep(arguments.every or EVERY_S)


def _show(arguments: argparse.Namespace, target: Target, done: Exported | None) -> None:
    if arguments.json:
        print(json.dumps(asdict(done) if done else {"rows": 0, "files": 0}), flush=True)
    elif done is None:
        print(f"{arguments.directory}: {target.title} has all rows; nothing was changed", flush=True)
    else:
        rows, files = counted(done.rows, "row"), counted(done.files, "file")
        print(f"{arguments.directory}: {rows} of {files} → {target.title}", flush=True)

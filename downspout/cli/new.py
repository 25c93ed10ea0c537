"""``downspout new``: make a project, with columns inferred from sample records."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout.cli.arguments import exit_codes, place
from downspout.cli.terminal import printable
from downspout.formatting import counted

if TYPE_CHECKING:
    from downspout.scaffold.infer import Inferred, RecordSample

SHOWN = 20


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "new",
        help="make a project: topology, bolt, test, sample data",
        description="Make a project in a new folder: a topology from Kafka to Parquet, a bolt, a test that passes, "
        "sample data, settings, and the files that `sparse` needs for Storm. Its README lists the commands.",
        epilog=exit_codes(),
    )
    parser.add_argument("folder", metavar="NAME", type=place, help="folder to make; its name is the project's")
    parser.add_argument(
        "--from", dest="sample", metavar="FILE", type=place,
        help="JSON lines, from which the columns are inferred; the project keeps the first 1,000 as its sample",
    )  # fmt: skip
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    """Make the project; print its contents and anything to check."""
    from downspout.scaffold.project import create

    folder: Path = arguments.folder
    sample, inferred = create(folder, arguments.sample)
    first = "" if sample.is_whole else "the first "
    read = f"{first}{counted(len(sample.lines), 'record')}"
    print(f"{folder}: a project with {counted(len(inferred.fields), 'column')}, inferred from {read}")
    _say_open(folder, sample, inferred)
    if arguments.sample is not None:
        print(f"  sample/{folder.name}.ndjson contains your own records: review it before you publish the project")
    print(f"Go on with: cd {folder} && python -m pytest    (README.md has the rest)")
    return 0


def _say_open(folder: Path, sample: RecordSample, inferred: Inferred) -> None:
    """Print what could not be inferred."""
    from downspout.scaffold.infer import said

    lines = said(inferred)
    if lines:
        print(f"  Look at {counted(len(lines), 'place')} in src/{folder.name}_columns.py:")
    for line in lines[:SHOWN]:
        print(f"    {printable(line)}")
    if len(lines) > SHOWN:
        print(f"    and {len(lines) - SHOWN:,} more")
    if inferred.unfit:
        place, reason = next(iter(inferred.unfit.items()))
        count = counted(len(inferred.unfit), "record")
        print(
            f"  {count} would be rejected, so the sample lacks them; line {sample.numbers[place]}: {printable(reason)}"
        )

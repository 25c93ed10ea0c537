"""``downspout compact``: merge the small files of a sink's directory into large ones."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout.cli.arguments import exit_codes, sink_place
from downspout.errors import ConfigError
from downspout.formatting import counted, seconds_of, size

if TYPE_CHECKING:
    from downspout.sink.compact import Compacted, Compactor

SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "compact",
        help="merge many small files into a few large ones",
        description="Merge the small files of each folder of a sink's directory, through its commit log. It is safe "
        "while topologies on any engine write to the directory and while others compact it, and may be stopped at any "
        "moment. Readers that go through the log see the same rows before, during and after.",
        epilog=exit_codes(
            _0="done, or nothing to do",
            _7="the directory is not a sink's, is damaged, or cannot be written",
            _130="stopped by Ctrl-C; nothing needs to be repaired",
        ),
    )
    parser.add_argument("directory", type=sink_place, metavar="DIR", help="the sink's directory (parquet.directory)")
    parser.add_argument(
        "--target-size", default="128MB", metavar="SIZE",
        help="make files of up to this size, in about four times as much memory (default: 128MB)",
    )  # fmt: skip
    parser.add_argument(
        "--keep", default="7d", metavar="TIME",
        help="delete replaced files, and snapshots of readers, that are older than this (default: 7d)",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="show what would be merged, without changing anything")
    parser.add_argument(
        "--forget-missing", action="store_true",
        help="continue without files that the log names but that are gone; their rows will not be written again",
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", help="print the summary as JSON, and the progress on standard error"
    )
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    """Compact, and print a summary."""
    from downspout.cli.compare import sigterm_as_ctrl_c
    from downspout.cli.terminal import log_to_stderr
    from downspout.sink.compact import Compactor

    log_to_stderr(quiet=True)
    compactor = Compactor(
        arguments.directory,
        target_bytes=parse_size("--target-size", arguments.target_size),
        keep_s=parse_age("--keep", arguments.keep),
        forget_missing=arguments.forget_missing,
        say=lambda line: print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True),
    )
    if arguments.dry_run:
        return _dry_run(compactor, arguments)
    with sigterm_as_ctrl_c():
        done = compactor.run()
    print(json.dumps(asdict(done), indent=2) if arguments.json else render(arguments.directory, done))
    return 0


def _dry_run(compactor: Compactor, arguments: argparse.Namespace) -> int:
    bins = compactor.plan()
    gone = compactor.missing() if arguments.forget_missing else []
    if arguments.json:
        facts = {"merge": [[file.path for file in files] for files in bins], "forget": gone}
        print(json.dumps(facts, indent=2))
        return 0
    for files in bins:
        folder = files[0].path.rpartition("/")[0] or arguments.directory
        total = size(sum(file.bytes for file in files))
        print(f"{folder}: {counted(len(files), 'file')} ({total}) would become 1")
    for path in gone:
        print(f"{path} is gone, and would be forgotten")
    count = sum(map(len, bins))
    print(f"{arguments.directory}: {counted(count, 'file')} would become {len(bins)}; nothing was changed")
    return 0


def render(directory: str | Path, done: Compacted) -> str:
    """Return the summary as text."""
    lines = [f"forgotten: {path}" for path in done.forgotten]
    besides = [
        f"{count:,} {what}"
        for count, what in (
            (done.gave_way, "abandoned, because another writer was faster"),
            (done.swept, "staged by stopped writers and swept"),
            (done.deleted, "replaced long ago and deleted"),
            (done.snapshots, "snapshots of readers deleted"),
            (len(done.forgotten), "gone and forgotten"),
        )
        if count
    ]
    before = f"{counted(done.files_before, 'file')} ({size(done.bytes_before)})"
    after = f"{counted(done.files_after, 'file')} ({size(done.bytes_after)})"
    what = f"{before} → {after}" if done.made or done.forgotten else f"{after}, nothing to merge"
    lines.append("; ".join([f"{directory}: {what}", *besides]))
    return "\n".join(lines)


def parse_size(option: str, text: str) -> int:
    """Return a number of bytes.

    >>> [parse_size("--target-size", text) for text in ("128MB", "1.5 MiB", "4096")]
    [128000000, 1572864, 4096]
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if not found or found[2] not in SIZES or (made := int(float(found[1]) * SIZES[found[2]])) < 1:
        raise ConfigError(f"{option} {text} is not a size", cure="128MB, 1GB or 64MiB")
    return made


def parse_age(option: str, text: str) -> float:
    """Return an option's seconds. It must have a unit: a bare 7, meant as days, would delete files after 7 s."""
    if (found := seconds_of(text)) is None:
        raise ConfigError(f"{option} {text} is not a duration", cure="7d, 12h, 30m or 0s")
    return found

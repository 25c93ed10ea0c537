"""``downspout compact``: many small files of a sink's directory become few large ones."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout.errors import ConfigError
from downspout.wording import counted, size

if TYPE_CHECKING:
    from downspout.parquet.compaction import Compacted, Compactor

SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
AGES = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "compact",
        help="make few large files of many small ones",
        description="Merges the small files of each folder of a sink's directory, through its commit log: safe while "
        "topologies write to it, whichever engine runs them, while others compact it, and against being stopped at any "
        "moment. Who reads through the log sees the same rows before, during and after. Replaced files stay below "
        "_downspout/ for --keep.",
        epilog="Exit codes: 0 done, or nothing to do; 2 an option is wrong; 7 no sink's directory, a damaged one, or "
        "the disk says no; 130 Ctrl-C, after which nothing needs to be repaired.",
    )
    parser.add_argument("directory", metavar="DIR", help="what parquet.directory says")
    parser.add_argument(
        "--target-size", default="128MB", metavar="SIZE",
        help="make files of up to this size, and leave those that are as large (default: 128MB); "
        "takes about four times as much memory",
    )  # fmt: skip
    parser.add_argument(
        "--keep", default="7d", metavar="TIME",
        help="delete replaced files, and readers' snapshots, that are older (default: 7d)",
    )  # fmt: skip
    parser.add_argument(
        "--sweep-after", default="1h", metavar="TIME",
        help="delete staged files of writers that have staged nothing for so long (default: 1h)",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="say what would be merged, and change nothing")
    parser.add_argument(
        "--forget-missing", action="store_true",
        help="files that the log names and that are gone count no more; their rows will not be written again",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the summary as JSON, progress on standard error")
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    """Compact, and sum up."""
    from downspout.cli.compare import sigterm_as_ctrl_c
    from downspout.cli.logs import log_to_stderr
    from downspout.parquet.compaction import Compactor

    log_to_stderr(quiet=True)
    compactor = Compactor(
        Path(arguments.directory),
        target_bytes=parse_size("--target-size", arguments.target_size),
        keep_s=parse_age("--keep", arguments.keep),
        sweep_after_s=parse_age("--sweep-after", arguments.sweep_after),
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


def render(directory: str, done: Compacted) -> str:
    """Return the summary for people."""
    lines = [f"forgotten: {path}" for path in done.forgotten]
    besides = [
        f"{count:,} {what}"
        for count, what in (
            (done.gave_way, "given up, because others were faster"),
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

    Raises:
        ConfigError: it is none, or nothing.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if not found or found[2] not in SIZES or (made := int(float(found[1]) * SIZES[found[2]])) < 1:
        raise ConfigError(f"{option} {text} is no size", cure="128MB, 1GB or 64MiB")
    return made


def parse_age(option: str, text: str) -> float:
    """Return a duration in seconds.

    >>> parse_age("--keep", "7d"), parse_age("--keep", "1.5h"), parse_age("--keep", "0s")
    (604800.0, 5400.0, 0.0)

    Raises:
        ConfigError: it is none.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", text.lower())
    if not found or found[2] not in AGES:
        raise ConfigError(f"{option} {text} is no duration", cure="7d, 12h, 30m or 0s")
    return float(found[1]) * AGES[found[2]]

"""Where the logs of a node are, and what went wrong according to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from downspout.errors import StormError
from downspout.storm.slots import stuck_slots
from downspout.storm.traceback import FRAMES

DAEMONS = ("zookeeper", "nimbus", "supervisor")
_TROUBLE = re.compile(r" ERROR | FATAL |Traceback \(most recent call last\)|OutOfMemoryError")
BYTES_MAX = 2 * 1024 * 1024


def show(folder: Path, topology: str | None = None, count: int = 20) -> str:
    """Return the places of all logs, and what those that speak of errors said last, without Java's stack frames.

    Slots whose workers do not come up are named behind them.
    """
    paths = list(_paths(folder, topology))
    if not paths:
        if topology and any(_paths(folder, None)):
            raise StormError(f"There are no logs of {topology} in {folder}", cure="`sparse list`, or no name: all logs")
        raise StormError(f"There are no logs in {folder}", cure="`downspout storm start`, then `sparse submit`")
    parts = []
    for path in paths:
        lines = _trouble(path)[-count:]
        parts.append(f"{path} ({path.stat().st_size:,} bytes)" + (":" if lines else ""))
        parts += [f"    {line}" for line in lines]
    return "\n".join([*parts, *map(str, stuck_slots(folder / "supervisor.log"))])


def _paths(folder: Path, topology: str | None) -> Iterator[Path]:
    if topology is None:
        for name in DAEMONS:
            yield from (path for suffix in ("log", "console") if (path := folder / f"{name}.{suffix}").is_file())
        if (folder / "local.log").is_file():
            yield folder / "local.log"
    for path in sorted((folder / "workers").glob("*/*/worker.log*")):
        name = path.parent.parent.name
        if topology is None or name == topology or re.fullmatch(re.escape(topology) + r"-\d+-\d+", name):
            yield path


def _trouble(path: Path) -> list[str]:
    """Return the lines from each one that speaks of an error to the next entry of the log."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - BYTES_MAX))
        text = file.read().decode(errors="replace")
    found, wanted = [], False
    for line in text.splitlines():
        if re.match(r"\d{4}-\d\d-\d\d ", line):
            wanted = False
        wanted = wanted or bool(_TROUBLE.search(line))
        if wanted and line.strip() and not line.startswith(FRAMES):
            found.append(line)
    return found

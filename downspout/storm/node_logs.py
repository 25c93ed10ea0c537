"""The logs of a node, and the errors in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from downspout.errors import StormError
from downspout.storm.node_files import stuck_slots

DAEMONS = ("zookeeper", "nimbus", "supervisor")
_TROUBLE = re.compile(r" ERROR | FATAL |Traceback \(most recent call last\)|OutOfMemoryError")
BYTES_MAX = 2 * 1024 * 1024


def show(folder: Path, topology: str | None = None, count: int = 20) -> str:
    """List all logs with their last errors, without Java's stack frames, then the slots whose workers do not start."""
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
    """Return the lines of each log entry from its first mention of an error on."""
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


# --- Python's tracebacks ---

HEAD = "Traceback (most recent call last):"
FRAMES = ("\tat ", "\t... ", "\tSuppressed: ")


def python_part(text: str) -> str:
    """Return the last Python traceback in a text, with those chained to it; empty if the text has none.

    A traceback is its head, indented lines, and the exception; Python puts a sentence between chained ones.

    >>> python_part("java.lang.X: oh\\nTraceback (most recent call last):\\n  File 'a'\\nKeyError: 1\\n\\tat org.x")
    "Traceback (most recent call last):\\n  File 'a'\\nKeyError: 1"
    """
    found: list[str] = []
    current: list[str] | None = None
    bridge: list[str] = []
    for line in text.splitlines():
        if HEAD in line:
            head = line[line.index(HEAD) :]
            chained = bool(found) and any(
                part.startswith(("During handling", "The above exception")) for part in bridge
            )
            found = [*found, *bridge, head] if chained else [head]
            current, bridge = found, []
        elif current is not None:
            current.append(line)
            if line and not line.startswith((" ", "\t")):  # the line of the exception ends the traceback
                current = None
        elif not line.startswith(FRAMES):
            bridge.append(line)
    while found and not found[-1].strip():
        found.pop()
    return "\n".join(found)


def without_frames(text: str) -> str:
    """Return Java's output without stack frames."""
    kept = [line for line in text.splitlines() if not line.startswith(FRAMES)]
    return "\n".join(kept)


_DIED = re.compile(r"pid:\d+, name:(?P<name>[^\s,]+?) exitCode:(?P<code>-?\d+)")


def ended_component(text: str) -> tuple[str, str] | None:
    """Return the component that ended according to Storm, and how; None if Storm reports no such end.

    Storm reports a process repeatedly, sometimes before its exit code is known (-1).

    >>> ended_component("ProcessInfo pid:7, name:split exitCode:-1, x\\nProcessInfo pid:7, name:split exitCode:137, x")
    ('split', 'killed by signal 9')
    """
    found = list(_DIED.finditer(text))
    if not found:
        return None
    name = found[0]["name"]
    return name, how_ended(max(int(each["code"]) for each in found if each["name"] == name))


def how_ended(code: int) -> str:
    """Describe an exit code from Java: above 128 it is a signal, -1 stands for unknown.

    >>> how_ended(143), how_ended(1), how_ended(-1)
    ('killed by signal 15', 'exit code 1', 'it is not known how')
    """
    if code < 0:
        return "it is not known how"
    return f"killed by signal {code - 128}" if code > 128 else f"exit code {code}"

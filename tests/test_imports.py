from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

FREE = {path.stem for path in (ROOT / "downspout").glob("*.py")}
"""Modules that lie between the rooms (errors, settings, clock, ...): every room but the ledger may use them."""

MAY_IMPORT: dict[str, set[str]] = {
    "ledger": set(),
    "wire": {"errors", "ledger", "origins"},
    "kafka": FREE | {"ledger"},
    "parquet": FREE | {"ledger", "kafka"},
    "chunks": FREE | {"ledger", "parquet"},
    "local": FREE | {"ledger", "kafka", "parquet"},
    "workers": FREE | {"ledger", "kafka", "parquet", "local"},
    "storm": FREE | {"ledger", "kafka", "parquet", "wire"},
    "spark": FREE | {"ledger", "kafka", "parquet", "local"},
    "compare": FREE | {"ledger", "kafka", "parquet", "local", "storm", "spark"},
    "testing": FREE | {"ledger", "kafka", "parquet", "local"},
}
"""Rooms of the library: which others each may import, besides itself. The rule is in docs/decisions."""

ALLOWED_BETWEEN = {"__main__": {"cli"}, "component": {"wire"}, "origins": {"ledger"}}
"""Free modules that use a room: the entry point starts the command line, and the base of our bolts is on the wire;
identities as a column are the ledger's identities."""

LEDGER_LIBRARIES = {"sortedcontainers"}


def modules(folder: Path) -> list[Path]:
    """Return the Python files below a folder."""
    return sorted(folder.rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Yield the dotted names that a module imports, at its top or anywhere inside."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{name}.{alias.name}" for alias in node.names)


def room_of(name: str) -> str | None:
    """Return the room (or free module) of the library that a dotted name lies in."""
    parts = name.split(".")
    return parts[1] if parts[0] == "downspout" and len(parts) > 1 else None


def relative(path: Path) -> str:
    """Return a path for a test's name."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("room", sorted(MAY_IMPORT), ids="room-{}".format)
def test_rooms_import_only_what_they_may(room: str) -> None:
    """The library's rooms depend on each other in one direction only."""
    allowed = MAY_IMPORT[room] | {room}
    wrong = [
        f"{relative(path)} imports {name}"
        for path in modules(ROOT / "downspout" / room)
        for name in imported(path)
        if (other := room_of(name)) is not None and other not in allowed
    ]
    assert not wrong


def test_modules_between_the_rooms_import_no_room() -> None:
    """What every room may use depends on none of them (but what is on the list)."""
    wrong = [
        f"{relative(path)} imports {name}"
        for path in sorted((ROOT / "downspout").glob("*.py"))
        for name in imported(path)
        if room_of(name) in {*MAY_IMPORT, "cli"} - ALLOWED_BETWEEN.get(path.stem, set())
    ]
    assert not wrong


def test_the_ledger_is_pure() -> None:
    """The ledger imports the standard library and sortedcontainers, and nothing that could do I/O or tell time."""
    impure = {"os", "io", "socket", "time", "datetime", "threading", "asyncio", "subprocess", "random", "logging"}
    allowed = (set(sys.stdlib_module_names) - impure) | LEDGER_LIBRARIES
    wrong = [
        f"{relative(path)} imports {name}"
        for path in modules(ROOT / "downspout" / "ledger")
        for name in imported(path)
        if room_of(name) != "ledger" and name.split(".")[0] not in allowed
    ]
    assert not wrong


@pytest.mark.parametrize("folder", ["spouts", "bolts"])
def test_components_import_only_the_library(folder: str) -> None:
    """A spout or bolt file can be used alone: it imports neither its neighbours nor topologies."""
    wrong = [
        f"{relative(path)} imports {name}"
        for path in modules(ROOT / folder)
        for name in imported(path)
        if name.split(".")[0] in {"spouts", "bolts", "topologies", "tests"}
    ]
    assert not wrong


@pytest.mark.parametrize("folder", ["downspout", "spouts", "bolts", "topologies"])
def test_nothing_imports_the_command_line(folder: str) -> None:
    """``cli`` stands on top: only itself and the programs' entry use it."""
    wrong = [
        f"{relative(path)} imports {name}"
        for path in modules(ROOT / folder)
        for name in imported(path)
        if room_of(name) == "cli" and "cli" not in path.relative_to(ROOT).parts and path.name != "__main__.py"
    ]
    assert not wrong


@pytest.mark.slow
def test_the_library_does_not_import_components() -> None:
    """``downspout`` recognises spouts and bolts by what they offer, never by importing them."""
    wrong = [
        f"{relative(path)} imports {name}"
        for path in modules(ROOT / "downspout")
        for name in imported(path)
        if name.split(".")[0] in {"spouts", "bolts", "topologies", "tests"}
    ]
    assert not wrong

"""Makes the pages on the code from the docstrings of the packages (``make docs``).

The first sentence of a package's docstring says what it decides, for the file map in docs/architecture.md. Its last
lines, ``To change X: module.py``, are the rows of docs/where-to-change.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "downspout"
ORDER = (
    *("ledger", "kafka", "spout", "dead_letters", "producing", "offsets", "engine", "wire", "batches", "parse"),
    *("sink", "sql", "tables", "audit", "run", "export", "web", "storm", "spark", "compare", "broker", "testing"),
    *("settings", "system", "scaffold", "cli"),
)
"""The packages in the order in which a reader meets them; what is missing here follows."""
CHANGE = re.compile(r"^To change (.+): (\S+)$", re.MULTILINE)
MAP = "## File map\n"
BESIDE = """
Single modules: `registry.py` (implementations of what lower packages declare), `protocols.py` (interfaces of components
and engines), `component.py` (the base class of our bolts), `errors.py`, `outages.py`, `metrics.py`, `clock.py`. Outside
the library: spouts in `spouts/`, one bolt per file in `bolts/`, examples in `topologies/`, the programs of `make demo`
in `demos/`, a folder of tests per package in `tests/`, benchmarks in `bench/`, developer tools in `tools/`.
"""
WHERE = """# Where to change what

For each rule, the file that implements it, by package. [Architecture](architecture.md) shows how the files work
together; [Contributing](../CONTRIBUTING.md#how-to-add) explains how to add a bolt, a setting, a command or a
metric.
"""


def packages() -> list[str]:
    """Return the packages of the library, in the order of the pages."""
    found = sorted(file.parent.name for file in LIBRARY.glob("*/__init__.py"))
    return sorted(found, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def docstring(package: str) -> str:
    """Return the docstring of a package."""
    text = (LIBRARY / package / "__init__.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(text)) or ""


def changes(package: str) -> Iterator[tuple[str, str]]:
    """Yield what can be changed in a package, and its file."""
    yield from CHANGE.findall(docstring(package))


def architecture_page() -> str:
    """Return docs/architecture.md: what is written by hand, and the file map below it."""
    by_hand = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition(MAP)[0]
    rows = ""
    for package in packages():
        first = re.split(r"(?<=[.?])\s", docstring(package).partition("\n\n")[0].replace("``", "`"))[0]
        rows += f"| `{package}/` | {' '.join(first.split())} |\n"
    return f"{by_hand}{MAP}\n| package | what it is |\n| --- | --- |\n{rows}{BESIDE}"


def where_page() -> str:
    """Return docs/where-to-change.md."""
    text = WHERE
    for package in packages():
        if rows := "".join(f"* {what}: `{file}`\n" for what, file in changes(package)):
            text += f"\n## {package}/\n\n{rows}"
    return text

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.command import PYTHON_CODE, cli

ROOT = Path(__file__).resolve().parents[1]

ORDER = (
    *("checkout", "exports", "registry", "errors", "findings", "formatting", "metrics", "clock", "outages"),
    *("exit_guard",),
    *("settings", "system", "ledger", "origins", "offset_ranges", "protocols", "wire", "component"),
    *("kafka", "dead_letters", "producing", "spout", "offsets", "engine", "batches", "sink", "tables", "sql", "parse"),
    *("broker", "run", "export", "storm", "spark", "web", "compare", "audit", "testing", "scaffold"),
    *("cli", "__main__"),
)
"""Packages and modules of the library, the lowest first: each imports only what stands before it."""

NEVER = (
    # What a record passes on one machine knows neither other engines nor what looks at it from outside.
    *((low, high) for low in ORDER[: ORDER.index("broker")] for high in ORDER[ORDER.index("broker") :]),
    *(("run", other) for other in ("broker", "export", "web", "storm", "spark", "compare", "audit", "testing")),
    *((one, other) for one in ("storm", "spark") for other in ("run", "storm", "spark") if one != other),
    *((name, "testing") for name in ORDER if name not in ("testing", "cli")),
)
"""Who may not import whom, besides the order."""

ROOT_REGISTERS = {
    "checkout",
    "registry",
    "run.call",
    "export.beside",
    "engine.graph",
    "engine.settings",
    "broker.embedded",
    "spout.ports",
    "offsets.stores.sql",
    "offsets.stores.zookeeper_store",
    "sink.notes",
    "batches.stores",
    "batches.sql_state",
    "batches.sql_metadata",
    "batches.zookeeper_metadata",
}
"""What ``downspout/__init__.py`` joins: what goes on beside a run, the scheme ``embedded`` and its broker, the schemes
of offset stores and of the stores of batches, and the notes of commits."""

NOT_YET: dict[tuple[str, str], str] = {}
"""Imports against the rule, each with what is to take its place. The list only gets shorter."""

CYCLES = ({"faults", "simulated_process", "sources", "world"},)
"""Modules of one package that know each other's types. The parts act on the whole that makes them, a fake broker or a
simulated world; a protocol of the two dozen members that they use would say the same twice."""

LEDGER_LIBRARIES = {"sortedcontainers"}


def modules(folder: Path) -> list[Path]:
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
    """Return the package (or module) of the library that a dotted name lies in."""
    parts = name.split(".")
    return parts[1] if parts[0] == "downspout" and len(parts) > 1 else None


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def library_imports(path: Path) -> Iterator[str]:
    """Yield the modules of the library that a module imports, anywhere in it, without ``downspout.``."""
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "downspout" and len(parts) > 1:
            while len(parts) > 2 and not is_module(parts):
                parts.pop()
            yield ".".join(parts[1:])


def is_module(parts: list[str]) -> bool:
    """Return whether a dotted name is a module or a package, and no name in one."""
    place = ROOT.joinpath(*parts)
    return place.is_dir() or place.with_suffix(".py").is_file()


def name_of(path: Path) -> str:
    """Return the name of one of the library's modules, without ``downspout.``."""
    parts = path.relative_to(ROOT / "downspout").with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@cache
def library() -> dict[str, set[str]]:
    """Return each module and what it imports, the root among them under the empty name."""
    return {name_of(path): set(library_imports(path)) for path in modules(ROOT / "downspout")}


def test_each_package_imports_only_lower_ones() -> None:
    """The library's packages stand in one order, and none imports a higher one, at the top or inside a function."""
    assert {name.partition(".")[0] for name in library()} - {""} == set(ORDER)
    wrong = [
        f"{name} imports {other}"
        for name, others in library().items()
        for other in sorted(others)
        if name and ORDER.index(name.partition(".")[0]) < ORDER.index(other.partition(".")[0])
    ]
    assert [each for each in wrong if tuple(each.split(" imports ")) not in NOT_YET] == []


def test_engines_do_not_know_each_other() -> None:
    """Storm, Spark and the local run are apart, and what a record passes knows nothing that looks on."""
    forbidden = set(NEVER)
    wrong = [
        f"{name} imports {other}"
        for name, others in library().items()
        for other in sorted(others)
        if (name.partition(".")[0], other.partition(".")[0]) in forbidden and (name, other) not in NOT_YET
    ]
    assert not wrong


def test_what_is_against_the_rule_is_still_needed() -> None:
    """An exception that nothing needs any more is taken from the list."""
    assert [pair for pair in NOT_YET if pair[1] not in library()[pair[0]]] == []


def test_the_root_joins_what_registers_and_nothing_else() -> None:
    """``import downspout`` registers schemes; it knows of nothing else."""
    assert library()[""] == ROOT_REGISTERS


def test_the_root_is_imported_before_ctrl_c_is_taken_care_of() -> None:
    """``import downspout`` brings in its registry and its finder and nothing else, of ours or not."""
    code = "import sys; before = set(sys.modules); import downspout; print(sorted(set(sys.modules) - before))"
    found = cli(code, program=PYTHON_CODE)
    assert found.stdout.strip() == "['__future__', 'downspout', 'downspout.checkout', 'downspout.registry']"


def test_no_module_imports_itself_by_way_of_others() -> None:
    """There is no circle of modules, not by imports in functions or for types either, but those that are listed."""
    found = [{name.rpartition(".")[2] for name in circle} for circle in circles(library())]
    assert [circle for circle in found if not any(circle <= known for known in CYCLES)] == []


def circles(graph: dict[str, set[str]]) -> Iterator[set[str]]:
    """Yield each set of modules of which each leads to each other one."""
    reached = {name: reach(graph, name) for name in graph}
    seen: set[str] = set()
    for name in graph:
        if name not in seen and name in reached[name]:
            circle = {other for other in reached[name] if name in reached.get(other, ())}
            seen |= circle
            yield circle


def reach(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    ahead = [*graph[start]]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += graph.get(name, ())
    return found


@pytest.mark.parametrize("core", ["ledger", "batches/core"])
def test_the_core_is_pure(core: str) -> None:
    """A core imports the standard library and sortedcontainers, and nothing that could do I/O or tell time."""
    impure = {"os", "io", "socket", "time", "datetime", "threading", "asyncio", "subprocess", "random", "logging"}
    allowed = (set(sys.stdlib_module_names) - impure) | LEDGER_LIBRARIES
    wrong = [
        f"{relative(path)} imports {name}"
        for path in modules(ROOT / "downspout" / core)
        for name in imported(path)
        if not name.startswith((f"downspout.{core.replace('/', '.')}.", "downspout.exports."))
        and name.split(".")[0] not in allowed
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


NO_SSH = """
import importlib, pkgutil, sys
for name in ("paramiko", "fabric"):
    sys.modules[name] = None
import downspout
for each in pkgutil.walk_packages(downspout.__path__, "downspout."):
    if not each.name.endswith("__main__"):
        importlib.import_module(each.name)
from downspout.cli import main
from streamparse.run import main as worker
raise SystemExit(main(["check", "topologies/word_count.py"]))
"""


@pytest.mark.slow
def test_nothing_of_ours_needs_ssh() -> None:
    """All modules are imported and a topology is checked where paramiko and Fabric are not to be had."""
    cli(NO_SSH, program=PYTHON_CODE, ends_s=300)


NO_ADMIN = """
import sys, types
sys.modules["kafka.admin"] = types.SimpleNamespace(KafkaAdminClient=None)  # kafka-python imports this name by itself
"""


@pytest.mark.parametrize(
    ("module", "needless"),
    [
        ("downspout.spark.data_source", {"pandas", "pyarrow.compute", "pyarrow.parquet", "streamparse"}),
        ("downspout.spark.topology.operators", {"pandas"}),
    ],
)
def test_a_python_worker_of_sparks_imports_little(module: str, needless: set[str]) -> None:
    """A worker that reads or runs a stage loads no large library that it may not need, and no admin client of ours."""
    code = f"{NO_ADMIN}\nimport {module}\nprint(*sys.modules)"
    done = cli(code, program=PYTHON_CODE, ends_s=120)
    assert not needless & set(done.stdout.split())


def test_tests_ask_packages_for_what_they_offer() -> None:
    offers = {path.parent.name: offered_by(path) for path in (ROOT / "downspout").glob("*/__init__.py")}
    wrong = [
        f"{relative(path)}: from downspout.{parts[1]} import {parts[-1]}"
        for path in [*modules(ROOT / "tests"), *modules(ROOT / "tools")]
        for parts in (name.split(".") for name in imported(path))
        if parts[0] == "downspout" and len(parts) > 3 and ".".join(parts[2:]) in offers.get(parts[1], ())
    ]
    assert wrong == []


def offered_by(path: Path) -> set[str]:
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "offered"
    ]
    homes = {module: names for call in calls for module, names in ast.literal_eval(call.args[1]).items()}
    return {f"{module}.{name}" for module, names in homes.items() for name in names.split()}


def test_a_class_has_a_name_of_its_own() -> None:
    found: dict[str, list[str]] = {}
    for folder in ("downspout", "spouts", "bolts"):
        for path in modules(ROOT / folder):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(relative(path))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}

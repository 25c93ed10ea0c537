"""Patches of kafka-python are in one package, with reasons, and are checked when a client is created."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.consumer.fetcher import Fetcher

from downspout.errors import BrokerError
from downspout.kafka import patches
from downspout.kafka.patches import private_api
from downspout.kafka.patches.private_api import CLASSES, OPTIONAL, ROOTS, TLS, absent, check_consumer, unknown_client

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(patches.__file__).parent
FILES = sorted(path for path in PACKAGE.glob("*.py") if path.stem not in {"__init__", "private_api"})
TABLES = ("CONSUMER", "PRODUCER", "IDEMPOTENT", "TRANSACTIONAL", "CLASSES", "TLS", "OPTIONAL")
STOCK = {("downspout/engine/acker.py", "_batches"), ("downspout/engine/bolt_task.py", "_batches")}
"""Streamparse's BatchingBolt has a private name that kafka-python's producer has, too."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


NAMES = {
    name for table in TABLES for path in getattr(private_api, table) for name in path.split(".") if is_private(name)
}
"""The private names of kafka-python that are declared."""


def touched(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield lines and the private names that a module touches there, except on what is its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_own(node.value):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
            yield from ((node.lineno, name) for name in texts(node.args[1:2]) if is_private(name))
        elif isinstance(node, ast.ClassDef) and {base.id for base in names(node.bases)} & {"known", *of_kafka(tree)}:
            yield from inherited(node)


def is_own(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        value = value.func
    return isinstance(value, ast.Name) and value.id in {"self", "cls", "super"}


def names(nodes: list[ast.expr]) -> Iterator[ast.Name]:
    yield from (node for node in nodes if isinstance(node, ast.Name))


def texts(nodes: list[ast.expr]) -> Iterator[str]:
    yield from (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def of_kafka(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "kafka":
            yield from (alias.asname or alias.name for alias in node.names)


def inherited(kind: ast.ClassDef) -> Iterator[tuple[int, str]]:
    """Yield the private names that a class made of one of the client's touches or replaces, without its own."""
    fields = [node for node in ast.walk(kind) if isinstance(node, ast.Attribute) and is_own(node.value)]
    own = {field.attr for field in fields if isinstance(field.ctx, ast.Store)} - NAMES
    own |= {name.id for name in names([node.target for node in kind.body if isinstance(node, ast.AnnAssign)])}
    yield from ((field.lineno, field.attr) for field in fields if is_private(field.attr) and field.attr not in own)
    for node in ast.walk(kind):
        if isinstance(node, ast.FunctionDef) and is_private(node.name):
            yield node.lineno, node.name


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_no_private_name_of_the_client_is_touched_elsewhere() -> None:
    """Outside of the package nobody touches a name that a patch declares, on anything but itself."""
    wrong = []
    for path in (path for folder in ("downspout", "spouts", "bolts") for path in sorted((ROOT / folder).rglob("*.py"))):
        where = path.relative_to(ROOT).as_posix()
        if PACKAGE not in path.parents:
            found = [(line, name) for line, name in touched(parsed(path)) if name in NAMES]
            wrong += [f"{where}:{line} {name}" for line, name in found if (where, name) not in STOCK]
    assert not wrong


def test_the_clients_modules_are_touched_by_public_names_only() -> None:
    """In the package of the client, whatever is touched beside the patches is public, or a class's own."""
    ours = {"_replace"}
    files = [path for path in sorted(PACKAGE.parent.rglob("*.py")) if PACKAGE not in path.parents]
    assert [f"{path.name} {name}" for path in files for _, name in touched(parsed(path)) if name not in ours] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_fault_says_what_is_wrong_and_when_its_patch_goes(path: Path) -> None:
    """Under each heading there is one docstring that has both, in that order."""
    _, *sections = re.split(r"^# --- .+ ---$", path.read_text(encoding="utf-8"), flags=re.M)
    assert len(sections) >= 3
    for section in sections:
        assert re.findall(r"^ +(Wrong|Goes when): ", section, flags=re.M) == ["Wrong", "Goes when"]


def test_the_private_names_that_are_declared_are_those_that_are_used() -> None:
    """Each name that a patch touches is checked for; one that no patch touches any more is not."""
    used = {name for path in [*FILES, PACKAGE / "private_api.py"] for _, name in touched(parsed(path))}
    assert used == NAMES


def test_the_classes_of_the_client_are_as_declared() -> None:
    """What needs no connection is there in the installed client."""
    assert absent(ROOTS, CLASSES | TLS) is None
    known = {part: kind for part, kind in OPTIONAL.items() if part.startswith("Fetcher.")}
    assert absent(SimpleNamespace(Fetcher=Fetcher), known) is None
    assert len(known) >= 9


def test_a_consumer_without_a_part_is_closed_and_the_part_named() -> None:
    """An unknown client is an error when a consumer is made, with its version and a cure."""
    closed: list[dict[str, Any]] = []
    consumer = SimpleNamespace(_coordinator=None, close=lambda **how: closed.append(how))
    with pytest.raises(BrokerError, match=r"kafka-python .* has no _cluster\.add_topic") as told:
        check_consumer(consumer)
    assert closed == [{"autocommit": False, "timeout_ms": 0}]
    assert told.value.cure == unknown_client("").cure
    assert "pip install" in str(told.value)


def test_a_part_of_another_type_is_as_good_as_absent() -> None:
    """Types are compared by name, and the first part that differs is the one that is told."""
    root = SimpleNamespace(_inner=SimpleNamespace(_flag=True, _name="x"))
    assert absent(root, {"_inner._flag": "bool", "_inner._name": "str"}) is None
    assert absent(root, {"_inner._flag": "bool", "_inner._name": "bytes"}) == "_inner._name"
    assert absent(root, {"_outer._flag": "bool", "_inner._name": "bytes"}) == "_outer._flag"

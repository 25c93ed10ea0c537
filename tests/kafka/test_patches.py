"""What is changed about kafka-python lies in one package, says why, and is looked at when a client is made."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from kafka.consumer.fetcher import Fetcher
from kafka.net.transport import KafkaSSLTransport

from downspout.errors import BrokerError
from downspout.kafka import patches
from downspout.kafka.patches import check
from downspout.kafka.patches.parts import absent, unknown_client

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(patches.__file__).parent
APART = {"__init__", "check", "parts"}
"""Modules of the package that patch nothing."""
FILES = sorted(path for path in PACKAGE.glob("*.py") if path.stem not in APART)
SAID = ("Wrong: ", "Patch: ", "Self-test: ", "Since: ", "Goes when: ")
DECLARED = ("CONSUMER", "PRODUCER", "IDEMPOTENT", "TRANSACTIONAL", "CLASSES", "OPTIONAL")
STOCK = {("downspout/engine/batching.py", "_batches"), ("downspout/engine/bolt_task.py", "_batches")}
"""Streamparse's BatchingBolt has a private name that kafka-python's producer has, too."""


def module(path: Path) -> ModuleType:
    return importlib.import_module(f"{patches.__name__}.{path.stem}")


def declared(path: Path) -> dict[str, str]:
    """Return the parts that a patch declares, and their types."""
    return {part: kind for name in DECLARED for part, kind in getattr(module(path), name, {}).items()}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private(parts: dict[str, str]) -> set[str]:
    return {name for part in parts for name in part.split(".") if is_private(name)}


NAMES = {name for path in FILES for name in private(declared(path))}
"""The private names of kafka-python that are used."""


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
def test_a_patch_says_what_is_wrong_and_when_it_goes(path: Path) -> None:
    """Its docstring has each part, in order, and it declares its self-test."""
    said = [line for line in (ast.get_docstring(parsed(path)) or "").splitlines() if line.startswith(SAID)]
    assert [line[: line.index(":") + 2] for line in said] == list(SAID)
    assert declared(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_patch_declares_the_private_names_that_it_uses(path: Path) -> None:
    """All of them, and no others but the way to the class that is replaced."""
    used = {name for _, name in touched(parsed(path))}
    assert used <= private(declared(path))
    assert private(declared(path)) - used <= {"_fetcher"}


@pytest.mark.parametrize("name", ["CONSUMER", "PRODUCER"])
def test_what_patches_declare_is_looked_at(name: str) -> None:
    """The check of consumers, and that of producers, have all that patches declare; none contradicts another."""
    wanted = [(part, kind) for path in FILES for part, kind in getattr(module(path), name, {}).items()]
    assert dict(getattr(check, name)) == dict(wanted)
    assert len(set(wanted)) == len(dict(wanted))


def test_the_classes_of_the_client_are_as_declared() -> None:
    for path in FILES:
        assert absent(module(path), getattr(module(path), "CLASSES", {})) is None
    roots = SimpleNamespace(Fetcher=Fetcher, KafkaSSLTransport=KafkaSSLTransport)
    wanted = {part: kind for path in FILES for part, kind in getattr(module(path), "OPTIONAL", {}).items()}
    known = {part: kind for part, kind in wanted.items() if part.partition(".")[0] in vars(roots)}
    assert absent(roots, known) is None
    assert len(known) >= 10


def test_a_consumer_without_a_part_is_closed_and_the_part_named() -> None:
    """An unknown client is an error when a consumer is made, with its version and a cure."""
    closed: list[dict[str, Any]] = []
    consumer = SimpleNamespace(_coordinator=None, close=lambda **how: closed.append(how))
    with pytest.raises(BrokerError, match=r"kafka-python .* has no _subscription\.has_valid_position") as told:
        check.check_consumer(consumer)
    assert closed == [{"autocommit": False, "timeout_ms": 0}]
    assert told.value.cure == unknown_client("").cure
    assert "pip install" in str(told.value)


def test_a_part_of_another_type_is_as_good_as_absent() -> None:
    """Types are compared by name, and the first part that differs is the one that is told."""
    root = SimpleNamespace(_inner=SimpleNamespace(_flag=True, _name="x"))
    assert absent(root, {"_inner._flag": "bool", "_inner._name": "str"}) is None
    assert absent(root, {"_inner._flag": "bool", "_inner._name": "bytes"}) == "_inner._name"
    assert absent(root, {"_outer._flag": "bool", "_inner._name": "bytes"}) == "_outer._flag"

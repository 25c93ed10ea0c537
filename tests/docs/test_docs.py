"""The documentation is true: its code runs, and its tables are those of the code."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest

from docs.generate import PAGES

ROOT = Path(__file__).resolve().parents[2]


def python_blocks(path: Path) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL))


FOR_THE_CLONE = {"demo", "docs", "dev", "dev-all"}
"""Extras for who works in the clone."""


def test_the_page_on_installing_names_each_extra() -> None:
    """The table of extras has those of pyproject.toml that are for users, and no other."""
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    table = page[page.index("| extra | adds |") :].partition("\n\n")[0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cells = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`([a-z]+)`", cell)]
    assert sorted(named) == sorted(project["optional-dependencies"].keys() - FOR_THE_CLONE)


@pytest.mark.slow
def test_the_how_to_on_testing_runs(tmp_path: Path) -> None:
    """Every test that the how-to shows passes as it stands there; that of a cluster in tests/broker."""
    code = python_blocks(ROOT / "docs" / "how-to" / "test-a-topology.md")
    names: dict[str, object] = {"__name__": "how_to"}
    exec(compile(code, "test-a-topology.md", "exec"), names)
    names.pop("test_my_topology_outlives_a_leader")
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == 6
    for test in tests:
        takes_folder = "tmp_path" in inspect.signature(test).parameters  # type: ignore[arg-type]
        test(*[tmp_path] * takes_folder)  # type: ignore[operator]


@pytest.mark.sweep
@pytest.mark.broker
def test_the_how_to_on_tls_runs(tmp_path: Path) -> None:
    """The test that the page shows passes on a broker with TLS and a password."""
    names: dict[str, object] = {}
    exec(python_blocks(ROOT / "docs" / "how-to" / "tls-and-sasl.md"), names)
    names["test_a_record_comes_back"](tmp_path)  # type: ignore[operator]


def test_the_page_on_delivery_names_its_tests() -> None:
    page = (ROOT / "docs" / "concepts" / "delivery.md").read_text(encoding="utf-8")
    tests = (ROOT / "tests" / "broker" / "test_replication.py").read_text(encoding="utf-8")
    assert set(re.findall(r"`(test_\w+)`", page)) == set(re.findall(r"^def (test_\w+)", tests, re.MULTILINE))


def test_the_how_to_on_compaction_runs(tmp_path: Path) -> None:
    """The function that the how-to shows passes as it stands there."""
    names: dict[str, object] = {"__name__": "how_to"}
    code = python_blocks(ROOT / "docs" / "how-to" / "compact-a-directory.md")
    exec(compile(code, "compact-a-directory.md", "exec"), names)
    names["test_compaction_keeps_the_rows"](tmp_path)  # type: ignore[operator]


def test_the_quickstart_topology_is_well_formed(tmp_path: Path) -> None:
    from downspout.cli import main

    file = tmp_path / "orders.py"
    file.write_text(python_blocks(ROOT / "docs" / "quickstart.md"), encoding="utf-8")
    assert main(["check", str(file)]) == 0


def test_the_topology_of_the_readme_is_well_formed(tmp_path: Path) -> None:
    from downspout.cli import main

    file = tmp_path / "orders.py"
    file.write_text(python_blocks(ROOT / "README.md"), encoding="utf-8")
    assert main(["check", str(file)]) == 0


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_current(name: str) -> None:
    """A page that is made from a table says what the table says (`make docs` writes it)."""
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == PAGES[name]()

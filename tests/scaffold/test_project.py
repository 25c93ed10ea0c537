from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from downspout.cli import main
from downspout.errors import ConfigError
from downspout.scaffold import create
from downspout.scaffold.project import FILES, check_name
from downspout.system.jars import STORM_VERSION
from tests.scaffold.readme import commands, shell

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my-shop", "'my-shop' cannot name a Python module. Try: my_shop"),
        ("7up", "cannot name a Python module. Try: shop"),
        ("class", "cannot name a Python module. Try: shop"),
        ("größe", "cannot name a Python module. Try: gr_e"),
        ("json", "'json' is the name of an existing module. Try: json_rows"),
        ("kafka", "'kafka' is the name of an existing module"),
        ("topologies", "'topologies' is the name of an existing module"),
    ],
)
def test_a_name_that_cannot_be_imported_is_refused(name: str, message: str, tmp_path: Path) -> None:
    """A name that is no identifier, or that of another module, is an error with a name that would do."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        create(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_an_empty_folder_is_taken_and_another_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop").mkdir()
    create(Path("shop"))
    before = {path: path.read_bytes() for path in Path("shop").rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"shop is not empty: it holds .*Try: another name, or an empty folder"):
        create(Path("shop"))
    Path("file").touch()
    with pytest.raises(ConfigError, match="file: Not a directory"):
        create(Path("file"))
    assert {path: path.read_bytes() for path in Path("shop").rglob("*") if path.is_file()} == before


def test_a_bad_sample_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command names the line of a sample that is wrong, ends with 2, and makes no folder."""
    (tmp_path / "sample.ndjson").write_text('{"id": 1}\nid=2\n', encoding="utf-8")
    assert main(["new", str(tmp_path / "shop"), "--from", str(tmp_path / "sample.ndjson")]) == 2
    assert "sample.ndjson, line 2: not JSON at character 1" in capsys.readouterr().err
    assert not (tmp_path / "shop").exists()


def test_a_project_has_its_files_and_each_is_well_formed(tmp_path: Path) -> None:
    """Every file of the list is there, filled, and of its kind; the jars are those of this version's Storm."""
    create(tmp_path / "shop")
    made = {str(path.relative_to(tmp_path / "shop")) for path in (tmp_path / "shop").rglob("*") if path.is_file()}
    assert made == {path.format(name="shop") for path in FILES} | {"sample/shop.ndjson"}
    for path in (tmp_path / "shop").rglob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"))
        assert "$" not in path.read_text(encoding="utf-8")
    assert json.loads((tmp_path / "shop/config.json").read_text()) == json.loads((ROOT / "config.json").read_text())
    ours = (ROOT / "project.clj").read_text().replace("defproject downspout", "defproject shop")
    assert (tmp_path / "shop/project.clj").read_text() == ours
    assert f'"{STORM_VERSION}"' in ours


def test_the_command_says_what_to_look_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What could not be decided is printed, and stands in the file of the columns."""
    (tmp_path / "s.ndjson").write_text('{"id": 1, "x": 1, "n": null}\n{"id": 2, "x": "\\u001b[1m"}\n', encoding="utf-8")
    assert main(["new", str(tmp_path / "odd"), "--from", str(tmp_path / "s.ndjson")]) == 0
    printed = capsys.readouterr().out
    columns = (tmp_path / "odd/src/odd_columns.py").read_text(encoding="utf-8")
    for text in ("n: string; always null", "x: left out; whole numbers in 1, text in 1"):
        assert text in printed
    assert "# x: whole numbers in 1, text in 1" in columns
    assert "always null" in columns
    assert (tmp_path / "odd/sample/odd.ndjson").read_text().splitlines()[0] == '{"id": 1, "x": 1, "n": null}'


HOSTILE = 'x\n__import__("builtins").RAN = True\r#'
"""A name of a field that would be a line of Python, were it written as it is."""
BARE = HOSTILE.replace('"', "'").replace(".", "_")


@pytest.mark.parametrize("name", [HOSTILE, BARE, "nul \0", "half \ud800", "a\x0cb"])
def test_a_name_in_a_record_is_never_code(name: str, tmp_path: Path) -> None:
    """Whatever keys records have, the files of the project hold assignments and imports only, and can be imported."""
    records = [{"id": 1, name: 1, "s": [{"a": 1, name: 1}]}, {"id": 2, name: "a"}, {"id": 3, f"{name} too": None}]
    sample = tmp_path / 'a"""b.ndjson'
    sample.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    create(tmp_path / "odd", sample)
    for path in (tmp_path / "odd").rglob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"))
    columns = ast.parse((tmp_path / "odd/src/odd_columns.py").read_text(encoding="utf-8"))
    kinds = [type(each).__name__ for each in columns.body]
    assert kinds == ["Expr", "Import", "Assign", "Assign", "Assign"]


@pytest.mark.slow
def test_a_project_of_ones_own_records_passes_its_test(tmp_path: Path) -> None:
    """With columns of every kind, times as numbers and odd names among them, the generated test passes."""
    record = {
        "id": 1, "at_ms": 1_769_846_716_000, "user-id": "a", "origin": "JFK", "n": None, "day": "2026-01-31",
        "local": "2026-01-31 10:00:00", "price": "3.50", "big": 12345678901234567890123, "tags": ["x"], "ratio": 0.5,
        "x": {"y": {"z": [1, 2.5]}, "a.b": [{"at": "2026-01-31T10:00:00Z"}]}, "class": True, "$name": "${ours}",
    }  # fmt: skip
    lines = [json.dumps({**record, "id": number}) for number in range(20)]
    (tmp_path / "s.ndjson").write_text("\n".join(lines), encoding="utf-8")
    create(tmp_path / "odd", tmp_path / "s.ndjson")
    with shell(tmp_path / "odd", tmp_path / "home", []) as run:
        run.run(*commands(tmp_path / "odd/README.md")["Test"])
    assert "2 passed" in run.said("python -m pytest")


def test_names_of_paths_are_the_projects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last part of a path is the name; an empty folder of that name in the working directory is no module."""
    monkeypatch.chdir(tmp_path)
    Path("shop").mkdir()
    assert check_name(Path("somewhere/shop")) == "shop"
    assert check_name(Path("shop")) == "shop"

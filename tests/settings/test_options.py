"""The types of ``spec`` arguments: generated from the table, and checked by type checkers."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from docs import option_types
from downspout.settings import SETTINGS, options

ROOT = Path(__file__).resolve().parents[2]
RIGHT = """
from collections.abc import Mapping

from bolts.aggregate import AggregateBolt
from bolts.kafka import KafkaBolt
from bolts.lookup import LookupBolt
from bolts.parquet import ParquetBolt
from bolts.parse import CsvParseBolt, JsonParseBolt
from bolts.sql import SqlBolt
from spouts.kafka import KafkaSpout
from streamparse import Bolt, Grouping, Spout, Stream, Topology, Tuple

FIELDS = ["origin", "value"]
TYPES: Mapping[str, str] = {"a": "int64"}
spout = KafkaSpout.spec(topics=["a"], fields=FIELDS, start="LATEST", client={"client_id": "x"}, config={}, par=2)
KafkaSpout.spec(topics="a,b", group=None, commit_period_ms=5, retry_delay_ms=2, emit_null=True)
parse = JsonParseBolt.spec(inputs=[spout], fields=["a"], types=TYPES, carry=("key",))
CsvParseBolt.spec(inputs=[spout], fields=["a", "-"], types=["a:int64"], on_null="filter")
LookupBolt.spec(inputs=[parse], table="t.csv", key="a", add=["b"], types={"b": "int64"})
ParquetBolt.spec("rows", inputs=[parse], directory="out", schema=TYPES, partition_by=["a"], flush_age_s=2)
AggregateBolt.spec(inputs=[parse], directory="out", schema={"a": "int64"}, keys=["a"], aggregates=["count"])
SqlBolt.spec(inputs=[parse], database="sqlite:///x.db", table="t", keys=["a"])
KafkaBolt.spec(inputs=[parse], topic="out", fields={"message": "a"}, acks="all", transactional=True)

class Words(Bolt):
    outputs = ["word", Stream(fields=["text"], name="rejects")]
    auto_ack = False

    def initialize(self, conf: dict[str, object], ctx: dict[str, object]) -> None:
        self.logger.info("%s", self.component_name.upper())

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values.text], anchors=[tup])
        self.ack(tup)

class Numbers(Spout):
    outputs = ["n"]

    def next_tuple(self) -> None:
        self.emit([1], tup_id="1")

class Counts(Topology):
    config = {"topology.workers": 1}
    numbers = Numbers.spec(par={"production": 2})
    words = Words.spec(inputs=[numbers], par=2)
    rejects = Words.spec(inputs={words["rejects"]: Grouping.fields("text"), numbers: Grouping.ALL})
"""
WRONG = {
    "KafkaSpout.spec(topicz=['a'])": "topicz",
    "KafkaSpout.spec(topics=['a'], start='NEWEST')": "start",
    "KafkaSpout.spec(topics=['a'], commit_period_ms='soon')": "commit_period_ms",
    "JsonParseBolt.spec(field=['a'])": "field",
    "LookupBolt.spec(lookup_table='t.csv')": "lookup_table",
    "ParquetBolt.spec(dir='out')": "dir",
    "AggregateBolt.spec(directory='out', flush_rows=1.5)": "flush_rows",
    "SqlBolt.spec(databse='sqlite:///x.db')": "databse",
    "KafkaBolt.spec(topics='out')": "topics",
    "Words.spec(input=[spout])": "input",
    "Words.spec(inputs=['spout'])": "GlobalStreamId",
    "Words.spec(inputs=[spout], par='2')": "par",
    "Words.spec(inputs={spout: Grouping.SHUFLE})": "SHUFLE",
    "Numbers().emitt([1])": "emitt",
}


def test_the_module_is_what_the_table_says() -> None:
    """`downspout/settings/options.py` is current (`make docs` writes it)."""
    assert option_types.FILE.read_text(encoding="utf-8") == option_types.module()


@pytest.mark.parametrize("scope", option_types.NAMES)
def test_each_type_takes_the_default_of_its_setting(scope: str) -> None:
    """A setting's type holds its default, each of its choices, and null only where it may be unset."""
    hints = get_type_hints(getattr(options, option_types.NAMES[scope]))
    for setting in (each for each in SETTINGS.values() if each.scope == scope):
        hint = hints[setting.key.partition(".")[2]]
        if not setting.required:
            assert _takes(hint, setting.default), setting.key
        assert all(_takes(hint, choice) for choice in setting.choices), setting.key
        assert _takes(hint, None) == (setting.default is None and not setting.required), setting.key


def _takes(hint: Any, value: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) in (Sequence, Mapping, PathLike):
        return isinstance(value, get_origin(hint))
    if args := get_args(hint):
        return any(_takes(each, value) for each in args)
    return isinstance(value, hint)


def by_mypy(file: Path) -> dict[int, str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(file.parent / "cache"), str(file)]
    environ = {"MYPYPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(
        [*command, "--config-file", str(ROOT / "pyproject.toml")],
        cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    found = [line.split(":", 3) for line in done.stdout.splitlines() if ": error:" in line]
    return {int(number): text for name, number, _, text in found if name.endswith(file.name)}


def by_pyright(file: Path) -> dict[int, str]:
    config = {"include": [file.name], "extraPaths": [str(ROOT)], "stubPath": str(ROOT / "stubs")}
    (file.parent / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(file.parent)]
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {each["range"]["start"]["line"] + 1: each["message"] for each in found}


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("checked", [by_mypy, pytest.param(by_pyright, marks=pytest.mark.sweep)])
def test_a_type_checker_finds_each_mistake_and_accepts_right_use(
    tmp_path: Path, checked: Callable[[Path], dict[int, str]]
) -> None:
    """A misspelt option and a value of the wrong type are errors at their line; all other lines are accepted."""
    lines = [*RIGHT.splitlines(), *WRONG]
    file = tmp_path / "specs.py"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = checked(file)
    first = len(lines) - len(WRONG) + 1
    assert set(found) == set(range(first, len(lines) + 1)), found
    assert all(name in found[first + place] for place, name in enumerate(WRONG.values())), found


class Editor:
    """Asks pyright's language server as an editor does, by the Language Server Protocol."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "pyright.langserver", "--stdio"]
        self._server = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._asked = 0
        about = {"processId": None, "rootUri": folder.as_uri(), "capabilities": {}}
        self.ask("initialize", about | {"workspaceFolders": [{"uri": folder.as_uri(), "name": "project"}]})
        self._send(method="initialized", params={})

    def completions(self, file: Path, text: str) -> set[str]:
        """Return what is offered at the end of a text."""
        document = {"uri": file.as_uri(), "languageId": "python", "version": self._asked, "text": text}
        self._send(method="textDocument/didOpen", params={"textDocument": document})
        last = text.splitlines()[-1]
        place = {"line": text.count("\n"), "character": len(last)}
        found = self.ask("textDocument/completion", {"textDocument": {"uri": file.as_uri()}, "position": place})
        return {item["label"] for item in found["items"]}

    def ask(self, method: str, params: Any) -> Any:
        """Return the answer to a request; what the server asks meanwhile gets none."""
        self._asked += 1
        self._send(id=self._asked, method=method, params=params)
        while "result" not in (said := self._read()) or said["id"] != self._asked:
            if "method" in said and "id" in said:
                self._send(id=said["id"], result=None)
        return said["result"]

    def close(self) -> None:
        self._server.kill()
        self._server.communicate()

    def _send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._server.stdin is not None
        self._server.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._server.stdin.flush()

    def _read(self) -> Any:
        out, size = self._server.stdout, 0
        assert out is not None
        while line := out.readline().strip():
            name, _, value = line.partition(b": ")
            size = int(value) if name == b"Content-Length" else size
        assert size, "the server has ended"
        return json.loads(out.read(size))


@pytest.mark.sweep
@pytest.mark.slow
def test_an_editor_offers_the_settings(tmp_path: Path) -> None:
    """What completes `spec(` in an editor is the names of settings, and in a setting's place its choices."""
    config = {"extraPaths": [str(ROOT)], "stubPath": str(ROOT / "stubs")}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    begin = "from spouts.kafka import KafkaSpout\nspout = KafkaSpout.spec("
    with contextlib.closing(Editor(tmp_path)) as editor:
        offered = editor.completions(tmp_path / "names.py", begin)
        assert {"topics=", "start=", "commit_period_ms="} <= offered
        assert any("LATEST" in each for each in editor.completions(tmp_path / "values.py", f"{begin}start="))

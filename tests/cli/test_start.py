"""A command's start imports only what the command needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from downspout.cli import main

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import sys
from downspout.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print("imported", code or 0, *sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["settings", "run"]])
def test_a_help_imports_no_large_library(words: list[str]) -> None:
    """Helps, the version and the table of settings are there without numpy, pyarrow, kafka-python and streamparse."""
    command = [sys.executable, "-c", CODE, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    imported = set(done.stdout.splitlines()[-1].split())
    assert {"0", "downspout.cli"} <= imported, done.stderr
    assert not imported & {"numpy", "pyarrow", "kafka", "streamparse", "pandas"}


TOPOLOGY = """
from streamparse import Spout, Topology
from bolts.parquet import ParquetBolt

class Four(Spout):
    outputs = ["word"]
    def initialize(self, conf, context):
        self.left = [1, 2, 3, 4]
    def next_tuple(self):
        if self.left:
            self.emit(["word"], tup_id=self.left.pop())

class Words(Topology):
    spout = Four.spec()
    sink = ParquetBolt.spec(inputs=[spout], schema={"word": "string"}, directory="out")
"""
NEEDLESS = {
    "duckdb", "polars", "pyspark", "sqlite3", "obstore", "fastavro", "google.protobuf", "prometheus_client",
    "starlette", "uvicorn", "downspout.web.page", "downspout.export.server", "downspout.export.otel",
    "downspout.storm", "downspout.spark",
    "downspout.audit", "downspout.broker", "downspout.compare", "downspout.testing", "downspout.sql.sql_writer",
    "downspout.dead_letters.replay", "rich.console",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [["check", "words.py"], ["run", "words.py", "--records", "4", "--quiet"], ["run", "idle.py", "--for", "0.1s"]],
)
def test_a_short_run_imports_what_it_needs(words: list[str], tmp_path: Path) -> None:
    """A check and a run over four records load no library and no package of ours that is for other commands.

    Where nothing is written, pandas is not among them: Arrow imports it for a table, in half a second.
    """
    (tmp_path / "words.py").write_text(TOPOLOGY)
    (tmp_path / "idle.py").write_text(TOPOLOGY.replace("[1, 2, 3, 4]", "[]"))
    command = [sys.executable, "-c", CODE, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    imported = set(done.stdout.splitlines()[-1].split())
    assert {"0", "bolts.parquet"} <= imported, done.stderr
    writes = words[:2] == ["run", "words.py"]
    assert not imported & (NEEDLESS if writes else NEEDLESS | {"pandas"}), done.stderr


def test_a_start_says_so_before_it_builds_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first line of a run comes once its topology and its settings are read, and no component is made yet."""
    monkeypatch.chdir(tmp_path)
    Path("late.py").write_text(
        TOPOLOGY.replace("self.left = [", "raise ValueError('too early')\n        self.left = [")
    )
    assert main(["run", "late.py"]) == 8
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "late starts: spout, sink"
    assert "too early" in last
    assert main(["run", "late.py", "--set", "parquet.flush_rows=none"]) == 2
    assert "starts" not in capsys.readouterr().err


def test_settings_are_found_by_scope_and_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """A scope lists its settings, a name is that setting alone, and anything else is an error with the nearest one."""
    assert main(["settings", "kafka.emit"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("kafka.emit ")
    assert main(["settings", "kafka.emitt"]) == 2
    assert "kafka.emitt is neither a setting nor a scope. Try: kafka.emit" in capsys.readouterr().err


def test_the_version_is_the_output_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """It goes to the standard output, so that a script can read it."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert not ended.value.code
    told = capsys.readouterr()
    assert (told.out.startswith("downspout "), told.err) == (True, "")

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from demos.s3 import KEYS, s3_server
from downspout.cli import main
from tests.tables.tables_support import numbers, write

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "delta-and-iceberg.md").read_text(encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a sink's directory of five rows."""
    write(tmp_path / "output" / "flights", *range(5))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_and_readers_of_the_page_run(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each export of the how-to works as it is written, and each reader on it counts the directory's rows."""
    exports = re.findall(r"^downspout (export .*)$", PAGE, re.MULTILINE)
    assert exports == ["export output/flights --delta", "export output/flights --iceberg"]
    for line in exports:
        assert main(line.split()) == 0
    assert "5 rows of 1 file → the Delta table output/flights.delta" in capsys.readouterr().out
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        exec(compile(program, "the page", "exec"), {})
    assert capsys.readouterr().out.split() == ["5"] * 6


def test_a_second_call_says_that_there_is_nothing_to_do(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A call takes what is new, says how much, and otherwise that the table has all; as JSON on demand."""
    words = ["export", "output/flights", "--iceberg", "--table", "lake.flights", "--to", "lake"]
    assert main(words) == 0
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "5 rows of 1 file → the Iceberg table lake.flights" in said
    assert "the Iceberg table lake.flights has all rows; nothing was changed" in said
    write(project / "output" / "flights", 5, 6)
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": 2, "files": 1, "entries": 2}
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": 0, "files": 0}


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_an_export_follows_the_directory_until_it_is_stopped(project: Path, stop: signal.Signals) -> None:
    """With --follow new rows go over by themselves, and a stop is clean."""
    command = [sys.executable, "-m", "downspout", "export", "output/flights", "--delta", "--follow", "--every", "0.1s"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True) as run:
        try:
            assert run.stdout is not None
            assert "5 rows" in run.stdout.readline()
            write(project / "output" / "flights", 5)
            assert "1 row of 1 file" in run.stdout.readline()
            run.send_signal(stop)
            _, said = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 130
    assert said == "downspout: interrupted\n"
    assert numbers("delta", project / "output" / "flights.delta") == list(range(6))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--delta", "--table", "a.b"], "--table goes with --iceberg"),
        (["--delta", "--every", "5s"], "--every goes with --follow"),
        (["--iceberg", "--table", "flights"], "has no namespace. Try: --table downspout.flights"),
        (["--iceberg", "--catalog", "prod"], "--catalog prod cannot be opened"),
        (["--iceberg", "--catalog", "sqlite:////nowhere/at/all.db"], "the catalogue of --catalog cannot be opened"),
    ],
)
def test_options_that_do_not_fit_are_errors(
    project: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option that means nothing here, or names nothing, is an error with a cure, and no table is made."""
    assert main(["export", "output/flights", *words]) in (2, 7)
    shown = capsys.readouterr().err
    assert said in shown
    assert "Try:" in shown
    assert sorted(path.name for path in (project / "output").iterdir()) == ["flights"]


@pytest.mark.parametrize(("form", "library"), [("--delta", "deltalake"), ("--iceberg", "pyiceberg")])
def test_a_missing_library_names_its_extra(
    project: Path, form: str, library: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    assert main(["export", "output/flights", form]) == 3
    assert f"pip install 'downspout[{form[2:]}]'" in capsys.readouterr().err


def test_a_damaged_table_is_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A Delta log that cannot be read is an error that names the table, and the directory stays as it is."""
    assert main(["export", "output/flights", "--delta"]) == 0
    (project / "output" / "flights.delta" / "_delta_log" / f"{0:020d}.json").write_text("{", encoding="utf-8")
    assert main(["export", "output/flights", "--delta"]) == 7
    assert "the Delta table output/flights.delta cannot be read" in capsys.readouterr().err


@pytest.mark.sweep
@pytest.mark.slow
def test_a_delta_table_may_be_on_an_object_store(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Delta table goes to S3 with the usual variables, and is kept in step there too."""
    with s3_server() as url:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true", "PYTHONPATH": str(ROOT)}.items():
            monkeypatch.setenv(name, value)

        # In processes of their own: delta-rs holds Python's lock through some requests, which the server needs, too.
        def run(*command: str) -> str:
            return subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True).stdout

        words = ("-m", "downspout", "export", "output/flights", "--delta", "--to", "s3://bucket/flights")
        assert "5 rows of 1 file → the Delta table s3://bucket/flights" in run(*words)
        assert "has all rows" in run(*words)
        write(project / "output" / "flights", 5)
        assert "1 row of 1 file" in run(*words)
        read = "import polars; print(len(polars.read_delta('s3://bucket/flights')))"
        assert run("-c", read) == "6\n"


_SPARK = """
import json, sys
from downspout.spark.session import spark_session
from downspout.system import jars

config = {
    "spark.jars": ",".join(map(str, jars.resolve("spark-delta"))),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
with spark_session("delta", config=config) as spark:
    rows = spark.read.format("delta").load(sys.argv[1])
    print("rows", json.dumps(sorted(row.n for row in rows.collect())))
"""


@pytest.mark.sweep
@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_a_delta_table(project: Path) -> None:
    assert main(["export", "output/flights", "--delta"]) == 0
    write(project / "output" / "flights", 5, 6)
    assert main(["export", "output/flights", "--delta"]) == 0
    command = [sys.executable, "-c", textwrap.dedent(_SPARK), str(project / "output" / "flights.delta")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert "rows [0, 1, 2, 3, 4, 5, 6]" in done.stdout, done.stderr

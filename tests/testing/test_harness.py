"""The harness for users' tests: its arguments, its sinks' directories, and names of topologies."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest
from streamparse import Bolt, Spout, Topology

from bolts.parquet import ParquetBolt
from downspout.engine.load import load, name_of
from downspout.errors import ConfigError
from downspout.testing import run_bolt, run_topology
from topologies.word_count import WordCount


class Numbers(Spout):
    outputs: ClassVar[list[str]] = ["number"]


class Two(Topology):
    """Two sinks that write below the working directory."""

    numbers = Numbers.spec()
    even = ParquetBolt.spec(inputs=[numbers], directory="output/even", schema={"number": "int64"})
    odd = ParquetBolt.spec(inputs=[numbers], directory="output/odd", schema={"number": "int64"})


ROWS = {"numbers": [[1], [2], [3]]}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "project.clj").write_text("")
    monkeypatch.chdir(folder)
    return folder


def numbers(directory: Path) -> list[int]:
    return sorted(pq.read_table(directory)["number"].to_pylist())


def test_nothing_is_written_into_the_project(project: Path) -> None:
    """Sinks whose directories would lie in the project write elsewhere, as long as the result lives."""
    result = run_topology(Two, spouts=ROWS)
    folders = list(result.sinks.values())
    assert [numbers(folder) for folder in folders] == [[1, 2, 3]] * 2
    assert [path.name for path in project.iterdir()] == ["project.clj"]
    del result
    gc.collect()
    assert not any(folder.exists() for folder in folders)


@pytest.mark.parametrize("form", ["{}/output/all", "{}/tests/../output/all", "file://{}/output/all"])
def test_an_absolute_directory_in_the_project_is_not_written_to_either(
    project: Path, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the topology writes it, and wherever in the project the test runs; one beside the project is used."""

    class Absolute(Topology):
        numbers = Numbers.spec()
        inside = ParquetBolt.spec(inputs=[numbers], directory=form.format(project), schema={"number": "int64"})
        beside = ParquetBolt.spec(inputs=[numbers], directory=str(tmp_path / "beside"), schema={"number": "int64"})

    (project / "tests").mkdir()
    monkeypatch.chdir(project / "tests")
    result = run_topology(Absolute, spouts=ROWS)
    assert numbers(result.sinks["inside"]) == [1, 2, 3]
    assert not (project / "output").exists()
    assert numbers(tmp_path / "beside") == [1, 2, 3]


def test_output_is_where_all_sinks_write(project: Path, tmp_path: Path) -> None:
    """With output= each sink writes to the folder of its name; a directory in config is stronger."""
    result = run_topology(
        Two, spouts=ROWS, output=tmp_path / "out", config={"odd:parquet.directory": str(tmp_path / "odd ones")}
    )
    assert result.sinks == {"even": tmp_path / "out" / "even", "odd": tmp_path / "odd ones"}
    assert numbers(tmp_path / "out" / "even") == numbers(tmp_path / "odd ones") == [1, 2, 3]
    assert not (project / "output").exists()


def test_who_says_so_writes_into_the_project(project: Path) -> None:
    """A directory that a test gives is the one that is written to, relative ones too."""
    run_topology(Two, spouts=ROWS, config={"even:parquet.directory": "here"})
    assert numbers(project / "here") == [1, 2, 3]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"kafak.group": "g"}, r"kafak\.group.*Try: kafka\.group"),
        ({"evn:parquet.flush_rows": 1}, r"there is no component 'evn'\. Try: 'even'"),
        ({"numbers:parquet.flush_rows": 1}, r"numbers:parquet\.flush_rows: StubSpout does not read parquet"),
        ({"even:parquet.flush_row": 1}, r"parquet\.flush_row.*Try: parquet\.flush_rows"),
        ({"redis.host": "x"}, r"redis\.host"),
    ],
)
def test_what_reaches_no_component_is_refused(config: dict[str, Any], said: str) -> None:
    """An unknown setting, or one for an unknown or a deaf component, is an error and not ignored."""
    with pytest.raises(ConfigError, match=said):
        run_topology(Two, spouts=ROWS, config=config)


class Greeter(Bolt):
    outputs: ClassVar[list[str]] = ["text"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.greeting = storm_conf.get("greeter.text")

    def process(self, tup: Any) -> None:
        self.emit([f"{self.greeting} {tup.values.name}"])


def test_a_bolt_under_test_may_have_keys_of_its_own() -> None:
    """run_bolt hands on what only the bolt knows, and refuses what is nearly a setting."""
    result = run_bolt(Greeter, [{"name": "Ada"}], {"greeter.text": "Hello", "topology.message.timeout.secs": 5})
    assert result.emitted("bolt")[0].text == "Hello Ada"
    with pytest.raises(ConfigError, match=r"kafak\.group.*Try: kafka\.group"):
        run_bolt(Greeter, [{"name": "Ada"}], {"kafak.group": "g"})


def test_a_topology_has_one_name() -> None:
    """A class is called as its file is called where it is run from; one of several also bears its own name."""
    assert name_of(WordCount) == load("topologies/word_count.py").name == load("topologies.word_count:WordCount").name
    assert name_of(WordCount) == "word_count"

    class Inner(Topology):
        numbers = Numbers.spec()

    assert name_of(Inner) == "Inner"
    assert name_of(Two) == "test_harness"

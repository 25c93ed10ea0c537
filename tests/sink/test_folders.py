"""Folders that are no path of this machine: refused where they cannot be used, before anything is made of the name."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamparse import Topology

from bolts.parquet import ParquetBolt
from downspout.audit.audit import audit
from downspout.cli import main
from downspout.engine.load import load
from downspout.errors import ConfigError
from downspout.run import runner
from downspout.run import topology_check as check
from downspout.settings import SETTINGS, folders
from downspout.settings.folders import local_path
from downspout.sink import read_entries, read_table, take_snapshot
from downspout.sink.snapshot import snapshot
from downspout.testing import run_topology
from spouts.kafka import KafkaSpout
from tests.sink.support import sink

URLS = ["hdfs://node:8020/out", "s3a://bucket/out", "abfss://c@a.net/o", "dbfs:/mnt/o", "s3://bucket", "s3://me@b/o"]
TOPOLOGY = """
from streamparse import Topology
from bolts.parquet import ParquetBolt
from spouts.kafka import KafkaSpout

class Lines(Topology):
    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    out = ParquetBolt.spec(inputs=[spout], directory="DIRECTORY", schema=["value:string"])
"""


class Lines(Topology):
    """A topology whose directory is in its configuration, where no spec has looked at it."""

    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    out = ParquetBolt.spec(inputs=[spout], directory="out", schema=["value:string"])


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def names() -> list[str]:
    """Return what is in the current folder, beside the topology and our own state."""
    return sorted({path.name for path in Path().iterdir()} - {"lines.py", ".downspout", "__pycache__"})


@pytest.mark.parametrize("url", URLS)
def test_a_directory_that_no_sink_can_write_is_refused_at_check_and_at_start(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever layer names it, check and run name the component (or its line) and the setting, and make no folder."""
    Path("lines.py").write_text(TOPOLOGY.replace("DIRECTORY", url), encoding="utf-8")
    for command in ("check", "run"):
        assert main([command, "lines.py"]) == 2
        assert f"lines.py:8: parquet.directory = '{url}'" in capsys.readouterr().err
    Path("lines.py").write_text(TOPOLOGY.replace("DIRECTORY", "out"), encoding="utf-8")
    for command in ("check", "run"):
        assert main([command, "lines.py", "--set", f"out:parquet.directory={url}"]) == 2
        assert f"out: parquet.directory = '{url}' (command line) is " in (said := capsys.readouterr().err)
        assert "Try: " in said
    assert names() == []


def test_what_all_components_share_is_said_of_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory in the environment or the settings file is refused with that place, not with the first component."""
    Path("lines.py").write_text(TOPOLOGY.replace("DIRECTORY", "out"), encoding="utf-8")
    Path("downspout.toml").write_text('[parquet]\ndirectory = "gcs://b/out"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^parquet.directory = 'gcs://b/out' \(downspout.toml\)"):
        check.resolve(load("lines.py"))
    Path("downspout.toml").unlink()
    monkeypatch.setenv("DOWNSPOUT_PARQUET_DIRECTORY", "gcs://b/out")
    with pytest.raises(ConfigError, match=r"^parquet.directory = 'gcs://b/out' \(environment\)"):
        runner.run(load("lines.py"))


def _on_spark(url: str) -> object:
    driver = importlib.import_module("downspout.spark.topology.driver")
    return driver.run(load("lines.py"), overrides=[f"parquet.directory={url}"])


def _on_spark_at(url: str) -> object:
    driver = importlib.import_module("downspout.spark.topology.driver")
    return driver.run(load("lines.py"), checkpoint=Path(url))


def _job_of_spark(url: str) -> object:
    return importlib.import_module("downspout.spark.parquet_output").parquet_stream(None, url)


STARTS: dict[str, Callable[[str], object]] = {
    "workers": lambda url: runner.run(
        load("lines.py"), overrides=[f"parquet.directory={url}"], options={"run.workers": 2}),
    "storm": lambda url: sink(ParquetBolt, Path(), fields=["origin", "value"], **{
        "parquet.directory": url, "parquet.schema": ["value:string"]}),
    "spark": _on_spark,
    "spark checkpoint": _on_spark_at,
    "spark job": _job_of_spark,
    "harness": lambda url: run_topology(Lines, config={"parquet.directory": url, "kafka.bootstrap": "fake://x"}),
    "harness output": lambda url: run_topology(Lines, config={"kafka.bootstrap": "fake://x"}, output=url),
}  # fmt: skip


@pytest.mark.parametrize("start", STARTS)
def test_every_way_to_start_refuses_other_file_systems(start: str) -> None:
    """No engine, checkpoint, output or test makes a local folder of a URL."""
    Path("lines.py").write_text(TOPOLOGY.replace("DIRECTORY", "out"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"hdfs:/.*is on hdfs, .*Try: "):
        STARTS[start]("hdfs://node/out")
    assert names() == []


READS: dict[str, Callable[[Any], object]] = {
    "snapshot": lambda url: snapshot(url).__enter__(), "take_snapshot": take_snapshot, "read_table": read_table,
    "read_entries": read_entries, "audit": audit,
}  # fmt: skip


@pytest.mark.parametrize("read", READS)
def test_every_function_that_reads_a_directory_refuses_other_file_systems(read: str) -> None:
    """A URL, as text or as the path that was made of it, is refused as one, and is no folder that does not exist."""
    for url in ("hdfs://b/o", Path("hdfs://b/o")):
        with pytest.raises(ConfigError, match=rf"^directory = '{url}' is on hdfs, .*Try: a path where HDFS is mounted"):
            READS[read](url)
    assert names() == []


def test_a_bolt_on_storm_names_itself() -> None:
    """Storm's log shows which component it is whose directory is wrong."""
    with pytest.raises(ConfigError, match=r"^sink: parquet.directory = 'hdfs://b/o'"):
        STARTS["storm"]("hdfs://b/o")


@pytest.mark.parametrize("start", ["spark checkpoint", "spark job", "harness output"])
def test_what_does_not_work_on_an_object_store_yet_says_so(start: str) -> None:
    """Spark's checkpoints, jobs of ours and the harness refuse the URL that sinks take."""
    Path("lines.py").write_text(TOPOLOGY.replace("DIRECTORY", "out"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"s3:/+b/o.* is on s3, .*Try: "):
        STARTS[start]("s3://b/o")
    assert names() == []


@pytest.mark.parametrize("command", [["audit", "hdfs://b/o"], ["compact", "s3a://b/o"]])
def test_a_command_for_a_directory_refuses_other_file_systems(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What no sink can have written is an error of the command line, with what to write instead."""
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    assert "which is not supported. Try: " in capsys.readouterr().err
    assert names() == []


@pytest.mark.parametrize("command", [
    ["spark", "run", "x.py", "--checkpoint", "s3://b/o"],
    ["compare", "x.py", "--keep", "s3://b/o"], ["kafka", "start", "--dir", "s3://b/o"],
    ["storm", "start", "--dir", "s3://b/o"], ["storm", "bundle", "x.py", "--output", "s3://b/o"],
    ["spark", "bundle", "--output", "s3://b/o"], ["spark", "bundle", "--add", "s3://b/o"],
])  # fmt: skip
def test_every_option_that_names_a_folder_refuses_an_object_store(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A URL as an option's value is an error of the command line that names the option and has the cure."""
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    assert "'s3://b/o' is on s3" in (said := capsys.readouterr().err)
    assert "Try: a local path" in said
    assert names() == []


def test_no_option_takes_a_folder_unchecked() -> None:
    """Each option of the command line that is a path goes through the one function that refuses URLs."""
    from downspout.cli import build_parser

    def options(parser: argparse.ArgumentParser) -> list[Any]:
        found: list[Any] = list(parser._actions)
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                found += [one for child in action.choices.values() for one in options(child)]
        return found

    assert [action.dest for action in options(build_parser()) if action.type is Path] == []
    unchecked = {one.dest for one in options(build_parser()) if one.metavar == "DIR" and one.type is None}
    assert unchecked == {"checkpoint"}  # that of another's query may be in a bucket, and `spark.checkpoint` checks it


@pytest.mark.parametrize("name", ["DOWNSPOUT_HOME", "DOWNSPOUT_PROJECT", "DOWNSPOUT_CACHE"])
def test_folders_in_the_environment_are_on_this_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """State, cache and project on an object store are refused with the variable's name."""
    monkeypatch.setenv(name, "s3://b/o")
    of = {"DOWNSPOUT_HOME": folders.home, "DOWNSPOUT_PROJECT": folders.project, "DOWNSPOUT_CACHE": folders.cache}
    with pytest.raises(ConfigError, match=f"^{name} = 's3://b/o'"):
        of[name]()


def test_a_file_url_is_the_path_that_it_names() -> None:
    """file:///path and file:/path are taken for the path; another machine, or an escaped character, is refused."""
    for given in ("file:///data/out", "file:/data/out", "file://localhost/data/out", "FILE:///data/out"):
        assert local_path(given, "x") == "/data/out"
        assert SETTINGS["parquet.directory"].parse(given, "spec") == "/data/out"
    for given in ("file://node7/data/out", "file:///data/a%20b"):
        with pytest.raises(ConfigError, match="a URL without a usable path"):
            local_path(given, "x")

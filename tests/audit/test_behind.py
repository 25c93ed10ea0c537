"""Does a run notice that its output directory is older than its group's commits?"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from downspout.audit import ReplayApart
from downspout.audit import behind as module
from downspout.audit.behind import behind
from downspout.audit.report import EXIT_CODES
from downspout.cli import main
from downspout.engine import resolve
from downspout.engine.load import load
from downspout.errors import ConfigError, TopologyError
from downspout.run import runner
from downspout.sink import layout_of
from downspout.testing import FakeKafka, run_on_records
from tests.audit.copies import copy_sink, delete_sink, move_sink
from tests.audit.test_audit_noted import TOPOLOGY, audit
from tests.sink.support import rows_of

pytestmark = pytest.mark.fake_only("the run is the command line's own, in real time; Kafka is a detail of it")


class Project:
    """A topology, its topic, and its output."""

    def __init__(self, kafka: FakeKafka) -> None:
        self.kafka = kafka
        self.given = ["picky.drops=dull", "kafka.retries_max=0", f"kafka.bootstrap={kafka.bootstrap}"]

    def run(self, *values: bytes, also: tuple[str, ...] = ()) -> None:
        """Produce records and process them."""
        for value in values:
            self.kafka.produce("lines", value, partition=0)
        runner.run("words.py", overrides=[*self.given, *also], options={"run.until": "end"})

    def behind(self, *also: str) -> list[str]:
        """Return the warnings that a run would begin with."""
        graph, given = load("words.py"), [*self.given, *also]
        return behind(graph, resolve(graph, given), run_on_records, "words.py", given)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A project whose output holds two rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.py").write_text(TOPOLOGY, encoding="utf-8")
    with FakeKafka("behind") as kafka:
        kafka.create_topic("lines")
        made = Project(kafka)
        made.run(b"good", b"dull", b"good")
        yield made


def restore_after(project: Project, *values: bytes) -> None:
    """Process more records, and put back the output as it was before."""
    copy_sink(Path("words"), Path("copy"))
    project.run(*values)
    delete_sink(Path("words"))
    move_sink(Path("copy"), Path("words"))


def test_an_older_copy_is_noticed_and_the_cure_cures(project: Project) -> None:
    """The warning names the records and a command; that command brings their rows, and only these."""
    restore_after(project, b"dull", b"good", b"bad", b"good")
    assert audit("words") == EXIT_CODES["missing"]  # what users of Storm go by
    (warning,) = project.behind()
    assert "words is behind group words: it has no rows of lines[0]@4 to @6" in warning
    assert "the topology makes rows of 2 of the 5 records looked at" in warning
    assert "--set kafka.group=words.again --set kafka.start=EARLIEST --until end" in warning
    project.run(b"good")
    assert project.behind()  # the hole is no end any more, and is seen all the same
    project.run(also=("kafka.group=words.again", "kafka.start=EARLIEST"))
    assert project.behind() == []
    assert audit("words") == 0


def test_a_run_from_python_says_it_as_well(project: Project, caplog: pytest.LogCaptureFixture) -> None:
    """Where no command looks before the run, the spout itself compares its commit with what the copy has noted."""
    restore_after(project, b"dull", b"good", b"bad", b"good")
    project.run(b"good")
    (said,) = [each.getMessage() for each in caplog.records if "is behind group words" in each.getMessage()]
    assert "has no rows of lines[0]@3 to @6" in said
    assert "downspout run words.py --set kafka.group=words.again --set kafka.start=EARLIEST --until end" in said


def test_the_command_keeps_what_was_given(project: Project) -> None:
    """The command that reads records again has the run's own settings and class, but group and start."""
    elsewhere = "words:parquet.directory=my words"
    project.run(b"good", also=(elsewhere, "kafka.group=one", "kafka.start=UNCOMMITTED_EARLIEST"))
    copy_sink(Path("my words"), Path("copy"))
    project.run(b"good", also=(elsewhere, "kafka.group=one"))
    delete_sink(Path("my words"))
    move_sink(Path("copy"), Path("my words"))
    graph, given = load("words.py"), [*project.given, elsewhere, "kafka.group=one"]
    (warning,) = behind(graph, resolve(graph, given), run_on_records, "words.py", given, "Words")
    command = warning.partition("takes them: ")[2].partition(" (the sink")[0]
    words = shlex.split(command)
    assert words[:5] == ["downspout", "run", "words.py", "--topology", "Words"]
    assert [words[at + 1] for at, word in enumerate(words) if word == "--set"] == [
        *project.given, elsewhere, "kafka.group=one.again", "kafka.start=EARLIEST",
    ]  # fmt: skip


def test_a_directory_that_was_deleted_under_its_group_is_noticed(project: Project) -> None:
    """The group goes on at its commit, and the new directory would lack everything before it."""
    shutil.rmtree("words")
    (warning,) = project.behind()
    assert "it has no rows of lines[0]@0 to @2" in warning


def test_commits_that_are_gone_are_noticed_by_the_rows(project: Project) -> None:
    """The group wrote rows of the topic and has no commit: expired, or deleted. The cure goes on behind the rows."""
    assert project.behind() == []
    project.kafka.delete_groups(["words"])
    (warning,) = project.behind()
    assert "group words has no commit for lines, and words has rows up to lines[0]@2: its commits expired" in warning
    assert "kafka.start = UNCOMMITTED_EARLIEST decides where it begins" in warning
    command = shlex.split(warning.partition("for each partition: ")[2])
    assert main([*command[1:], "--bootstrap", project.kafka.bootstrap]) == 0
    assert project.behind() == []
    project.run(b"good")
    assert len(rows_of(Path("words"))) == 3


def test_what_a_seek_has_skipped_is_not_called_missing(project: Project) -> None:
    """With --sink the seek is noted in the directory: neither the next run nor an audit calls the records missing."""
    for _ in range(3):
        project.kafka.produce("lines", b"good", partition=0)
    access = ("--bootstrap", project.kafka.bootstrap)
    assert main(["offsets", "seek", "words", "--to-latest", "--sink", "words", "--yes", *access]) == 0
    assert project.behind() == []
    project.run(b"good")
    assert main(["audit", "words", "--topology", "words.py", "--set", "picky.drops=dull", *access]) == 0


def test_what_the_run_refuses_is_not_called_missing(project: Project) -> None:
    """Where the sink will not open the directory, nothing is said of rows: its error says what is wrong."""
    restore_after(project, b"good")
    (entry,) = layout_of(Path("words")).log.glob("*0.json")
    entry.rename(entry.with_suffix(".away"))
    assert project.behind() == []
    entry.with_suffix(".away").rename(entry)
    assert project.behind()
    (Path("words") / "part-words-9-x-1.parquet").touch()
    assert project.behind() == []


def test_a_run_on_spark_looks_as_well(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``downspout spark run`` warns before it starts the query."""
    restore_after(project, b"good")

    def start(*_: object, **__: object) -> None:
        raise ConfigError("the query begins", cure="")

    monkeypatch.setattr("downspout.spark.topology.driver.run.run", start)
    given = [word for value in project.given for word in ("--set", value)]
    assert main(["spark", "run", "words.py", *given]) == ConfigError.exit_code
    said = capsys.readouterr().err
    assert "it has no rows of lines[0]@3 to @3" in said
    assert said.index("is behind group") < said.index("the query begins")


def test_records_without_rows_are_no_alarm(project: Project) -> None:
    """What was filtered or dead-lettered since the last row, and what is not committed yet, is not missing."""
    assert project.behind() == []
    project.run(b"dull", b"bad", b"dull")
    project.kafka.produce("lines", b"good", partition=0)
    assert project.behind() == []


def test_dead_letters_are_no_alarm_once_the_bolt_is_repaired(project: Project) -> None:
    """What was dead-lettered has no row, though the repaired topology would make one: `dlq replay` brings it."""
    project.run(b"dull", b"bad", b"bad")
    Path("words.py").write_text(TOPOLOGY.replace('== "bad"', '== "worse"'), encoding="utf-8")
    assert project.behind() == []
    restore_after(project, b"good", b"bad", b"worse")
    Path("words.py").write_text(TOPOLOGY.replace('== "bad"', '== "nothing"'), encoding="utf-8")
    (warning,) = project.behind()
    assert "it has no rows of lines[0]@6 to @8 (the topology makes rows of 2 of the 7 records looked at" in warning


def test_without_holes_nothing_is_run_again(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that has all its rows costs a few requests, and no process."""
    monkeypatch.setattr(module, "LOOK_BACK", 1)
    monkeypatch.setattr(module, "ReplayApart", None)
    assert project.behind() == []


def test_a_run_that_does_not_go_on_at_the_commit_is_not_warned(project: Project) -> None:
    """A new group, another start and a rebuild read from elsewhere: nothing is behind."""
    restore_after(project, b"good")
    assert project.behind("kafka.group=other") == []
    assert project.behind("kafka.start=EARLIEST") == []
    assert project.behind("parquet.rebuild=7") == []
    assert project.behind()


def test_what_was_before_the_first_row_was_never_meant(project: Project) -> None:
    """A run that began with the latest records lacks the earlier ones on purpose."""
    latest = ("kafka.group=late", "kafka.start=UNCOMMITTED_LATEST", "words:parquet.directory=late")
    project.run(also=latest)
    project.run(b"good", also=latest)
    assert len(list(Path("late").glob("*.parquet"))) == 1
    assert project.behind(*latest) == []


def test_a_broker_that_is_away_ends_the_look_and_says_so(project: Project) -> None:
    """The look before the run raises nothing, and says in one line that it saw nothing, and why."""
    project.kafka.broker_down()
    (warning,) = project.behind()
    assert re.match(r"could not look whether words is behind its group: \w+: .*", warning)
    assert "\n" not in warning


@pytest.mark.parametrize("stage", ["made", "called"])
def test_a_replay_that_fails_is_said_and_the_run_goes_on(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stage: str
) -> None:
    """Where the topology cannot be run again for the look, a line says so before the run, which does its work."""
    restore_after(project, b"good")

    class Failing(ReplayApart):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if stage == "made":
                raise TopologyError("no such bolt")
            super().__init__(*args, **kwargs)

        def __call__(self, records: Any) -> Any:
            raise TopologyError("no such bolt")

    monkeypatch.setattr(module, "ReplayApart", Failing)
    project.kafka.produce("lines", b"good", partition=0)
    given = [word for value in project.given for word in ("--set", value)]
    assert main(["run", "words.py", "--until", "end", *given]) == 0
    said = capsys.readouterr().err
    assert "warning: could not look whether words is behind its group: TopologyError: no such bolt\n" in said
    assert "it has no rows" not in said
    assert len(rows_of(Path("words"))) == 3  # those of the copy, and the one of this run

from __future__ import annotations

import json
from pathlib import Path

import pytest

from downspout.audit import AuditWindow
from downspout.cli import audit as command
from downspout.cli import main
from downspout.engine.load import load
from downspout.errors import ConfigError, SinkError, TopologyError
from downspout.sink import Compactor, Layout
from downspout.testing import FakeKafka, run_topology
from tests.audit.command_support import LETTERS, WITH_TOPOLOGY, run

pytestmark = pytest.mark.fake_only(
    "runs a topology in virtual time; tests/broker/test_audit_broker.py has one in real time"
)


@pytest.mark.parametrize("directory", ["words", "counts"])
def test_every_record_is_explained(project: FakeKafka, directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the topology and the dead letters each record without a row has its reason, for rows and for aggregates."""
    assert run(project, directory, *WITH_TOPOLOGY, *LETTERS) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["partition", "offsets", "rows", "present", "filtered", "dead-lettered"]
    assert lines[2].split() == ["lines[0]", "0–6", "6", "3", "2", "1"]
    assert lines[-1].startswith("exact: 3 offsets are ")
    assert lines[-1].endswith("each exactly once; 2 filtered, 1 dead-lettered")


@pytest.mark.parametrize("directory", ["words", "counts"])
def test_compaction_changes_nothing_that_is_found(
    project: FakeKafka, directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compacted between runs, and run again from the start by another group, rows and aggregates are there once."""
    for number, group in enumerate(("g", "g", "again")):
        if group == "g":
            project.produce("lines", b"and so on", partition=0)
        settings = {"kafka.bootstrap": project.bootstrap, "kafka.group": group, "kafka.retries_max": 1}
        run_topology(load("words_topology.py"), config=settings)
        done = Compactor(Path(directory)).run()
        assert (done.made, done.files_after) == (int(number < 2), 1)
    letters = ("--dead-letters", "again.dead-letters")
    capsys.readouterr()
    assert run(project, directory, *WITH_TOPOLOGY, *letters) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("exact: 5 offsets are ")


def forget_runs(directory: str) -> None:
    """Delete what a directory knows of the settings of its runs."""
    (Layout(Path(directory)).runs).unlink()


def test_without_them_it_is_missing(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the topology, and notes of a run, a record without a row is missing, whatever the reason."""
    forget_runs("words")
    assert run(project, "words") == 10
    assert "NOT exact: 3 missing (lines[0]@1, @3, …)" in capsys.readouterr().out
    assert run(project, "words", "--to", "1") == 0
    assert run(project, "words", "--from", "0:4", "--to", "0:5") == 0


FIRST_WORDS = """
from streamparse import Topology
from bolts.parquet import ParquetBolt
from bolts.split import SplitBolt
from downspout.component import Bolt
from spouts.kafka import KafkaSpout

class FirstWordBolt(Bolt):
    outputs = ["origin", "word"]

    def process(self, tup):
        if tup.values.origin.path.endswith(".0"):
            self.emit([*tup.values])

class FirstWords(Topology):
    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    split = SplitBolt.spec(inputs=[spout])
    first = FirstWordBolt.spec(inputs=[split])
    words = ParquetBolt.spec(inputs=[first], directory="first", schema=["word:string"])
"""


def test_each_word_is_looked_for(project: FakeKafka) -> None:
    """With the topology a record is complete only with all of its rows; files and Kafka alone cannot tell."""
    Path("first_words.py").write_text(FIRST_WORDS, encoding="utf-8")
    settings = {"kafka.bootstrap": project.bootstrap, "kafka.group": "first", "kafka.retries_max": 1}
    run_topology(load("first_words.py"), config=settings)
    assert run(project, "first", "--to", "1") == 0
    assert run(project, "first", *LETTERS, "--topology", "first_words.py") == 0
    assert run(project, "first", *LETTERS, *WITH_TOPOLOGY, "--set", "words:parquet.directory=first") == 10


def test_json_has_every_reason_and_its_offsets(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """What the notes cut short, JSON has in full: each error that a record has, run again, with all its offsets."""
    for number in range(20):
        project.produce("lines", b"x" * (number % 5) + b"\xff", partition=0)
    assert run(project, "words", *WITH_TOPOLOGY, *LETTERS, "--json") == 10
    report = json.loads(capsys.readouterr().out)
    reasons = report["partitions"][0]["reasons"]
    assert sorted(sum(end - start for start, end in found) for found in reasons.values()) == [4] * 5
    assert "…" in report["notes"]
    assert all("utf-8" in why for why in reasons)


def test_json_says_the_same(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """The report as JSON holds the exit code, the verdict and the offsets of each kind."""
    forget_runs("words")
    assert run(project, "words", "--json") == 10
    report = json.loads(capsys.readouterr().out)
    assert (report["exit_code"], report["problems"]) == (10, ["missing"])
    assert report["partitions"][0]["offsets"]["missing"] == [[1, 2], [3, 4], [5, 6]]
    assert report["files"]["visible"] == 1


def test_files_alone(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """Files can be compared with their log without Kafka; the verdict says that, and a note what it cannot tell."""
    note = "compared with the log alone: an older copy of the directory, or a log whose last entries are gone"
    assert run(project, "words", *WITH_TOPOLOGY) == 0
    assert note not in capsys.readouterr().out
    project.broker_down()
    assert run(project, "words", "--files-only") == 0
    said = capsys.readouterr().out
    assert "(Kafka was not asked)" in said
    assert f"{note} together with their files, looks the same; only Kafka can tell" in " ".join(said.split())


def test_a_topology_that_does_not_write_there(project: FakeKafka) -> None:
    """A topology none of whose sinks writes to the directory is an error that names where they write."""
    Path("elsewhere").mkdir()
    with pytest.raises(TopologyError, match=r"no sink writes to elsewhere \(words to words, counts to counts\)"):
        run(project, "elsewhere", *WITH_TOPOLOGY)
    moved = ("--set", "words:parquet.directory=elsewhere")
    assert run(project, "elsewhere", *WITH_TOPOLOGY, *moved, "--topic", "lines", "--to", "0") == 0


def test_bad_arguments(project: FakeKafka) -> None:
    """Offsets that are none, and a directory that is none, are errors that say what to give."""
    for text in ("x", "1:", "-3", "a:1", ""):
        if text:
            with pytest.raises(ConfigError, match="is not an offset"):
                command.parse_windows(text, None)
    with pytest.raises(SinkError, match="does not exist"):
        run(project, "nowhere")


def test_a_start_beyond_the_end_is_no_exact_audit(project: FakeKafka) -> None:
    """Where no partition has the first offset, nothing would be compared: an error that names the ends."""
    with pytest.raises(ConfigError, match=r"each partition ends before that offset \(lines\[0\] at 6\)"):
        run(project, "words", "--from", "7")
    assert run(project, "words", "--from", "6") == 0  # nothing is new since then


@pytest.mark.parametrize("files_only", [(), ("--files-only",)])
def test_offsets_of_a_partition_that_is_not_there_are_refused(project: FakeKafka, files_only: tuple[str, ...]) -> None:
    """A wrong partition number would bound nothing, and all be audited."""
    with pytest.raises(ConfigError, match=r"there is no partition 7 in lines.*partitions 0 to 0"):
        run(project, "words", "--from", "7:3", *files_only)


def test_a_name_that_is_too_long_is_an_error(project: FakeKafka) -> None:
    """A directory that no system can have is refused as others are, not by a traceback."""
    with pytest.raises(SinkError, match="File name too long"):
        run(project, "d" * 300)


def test_a_directory_that_is_not_there_is_said_before_kafka_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped directory is what is wrong, not that no broker runs here."""
    monkeypatch.chdir(tmp_path)
    assert main(["audit", "nowhere"]) == SinkError.exit_code
    assert "nowhere does not exist" in capsys.readouterr().err


def test_windows_by_partition() -> None:
    windows = command.parse_windows("5,1:7", "2:9")
    assert windows == {None: AuditWindow(5, None), 1: AuditWindow(7, None), 2: AuditWindow(5, 9)}


FAILING = """
from streamparse import Topology
from bolts.parquet import ParquetBolt
from downspout.component import Bolt
from spouts.kafka import KafkaSpout

class Picky(Bolt):
    outputs = ["origin", "value"]

    def process(self, tup):
        if tup.values.value in ("to be", "or not"):
            raise ValueError("no such word")

class Twice(Bolt):
    outputs = ["origin", "value"]

    def process(self, tup):
        self.emit([tup.values.origin, tup.values.value])
        self.emit([tup.values.origin, tup.values.value])

class Failing(Topology):
    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    picky = Picky.spec(inputs=[spout])
    rows = ParquetBolt.spec(inputs=[picky], directory="rows", schema=["value:string"])

class Doubling(Topology):
    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    twice = Twice.spec(inputs=[spout])
    rows = ParquetBolt.spec(inputs=[twice], directory="rows", schema=["value:string"])
"""


def test_a_record_on_which_a_bolt_raises_is_not_filtered(
    project: FakeKafka, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A record that fails in the replay is missing, with the reason, and no traceback is logged."""
    Path("failing.py").write_text(FAILING, encoding="utf-8")
    Path("rows").mkdir()
    only = ("--topology", "failing.py", "--class", "Failing", "--topic", "lines", "--to", "5")
    assert run(project, "rows", *only) == 10
    out = capsys.readouterr().out
    assert "NOT exact: 3 missing (lines[0]@0, @2, …)" in out
    assert "fails in picky: ValueError: no such word" in out
    assert not caplog.records


FLAKY = """
from pathlib import Path
from streamparse import Topology
from bolts.parquet import ParquetBolt
from downspout.component import Bolt
from spouts.kafka import KafkaSpout

class Flaky(Bolt):
    outputs = ["origin", "value"]

    def process(self, tup):
        if Path("away").exists() and tup.values.origin.offset == 4:
            raise ConnectionError("the service is away")
        self.emit([tup.values.origin, tup.values.value])
        PAIR

class Asking(Topology):
    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    flaky = Flaky.spec(inputs=[spout])
    rows = ParquetBolt.spec(inputs=[flaky], directory="rows", schema=["value:string"])
"""
PAIR = "self.emit([tup.values.origin.child('flaky', 1), tup.values.value])"


@pytest.mark.parametrize("pair", ["", PAIR], ids=["one row", "two rows"])
def test_a_record_that_has_its_rows_and_fails_in_the_replay_is_not_judged(
    project: FakeKafka, capsys: pytest.CaptureFixture[str], pair: str
) -> None:
    """A bolt that asks a service may fail in the audit: its rows are neither extra nor missing; the note says why."""
    Path("flaky.py").write_text(FLAKY.replace("PAIR", pair), encoding="utf-8")
    settings = {"kafka.bootstrap": project.bootstrap, "kafka.group": "f", "kafka.retries_max": 0}
    run_topology(load("flaky.py"), config=settings)
    only = ("--topology", "flaky.py", "--to", "5", "--dead-letters", "f.dead-letters")
    assert run(project, "rows", *only) == 0
    assert "not compared with the topology" not in capsys.readouterr().out
    Path("away").touch()
    assert run(project, "rows", *only) == 0
    out = capsys.readouterr().out
    assert "lines[0]@4: in the files, but not compared with the topology: when run again, 1 record failed (@4" in out
    assert "fails in flaky: ConnectionError: the service is away" in out


def test_the_topologys_own_dead_letters_are_found(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    forget_runs("words")
    assert run(project, "words", *WITH_TOPOLOGY, "--set", "kafka.group=g") == 0
    assert "2 filtered, 1 dead-lettered" in capsys.readouterr().out
    assert run(project, "words", *WITH_TOPOLOGY, "--set", "kafka.group=other") == 10
    assert "fails in " in capsys.readouterr().out


def test_the_dead_letters_are_those_of_the_group_that_is_audited(
    project: FakeKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --group the topology was run as that group; a topic of letters that does not exist is an error."""
    assert run(project, "words", *WITH_TOPOLOGY, "--group", "g") == 0
    assert "2 filtered, 1 dead-lettered" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--dead-letters g\\.letters: there is no such topic"):
        run(project, "words", *WITH_TOPOLOGY, "--dead-letters", "g.letters")


UNEVEN = """
from streamparse import Topology
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from bolts.split import SplitBolt
from spouts.kafka import KafkaSpout

class Uneven(Topology):
    spout = KafkaSpout.spec(topics=["blank", "lines"], fields=["origin", "value"])
    other = KafkaSpout.spec(name="other", topics=["elsewhere"], fields=["origin", "value"])
    split = SplitBolt.spec(inputs=[spout])
    words = ParquetBolt.spec(inputs=[split], directory="uneven", schema=["word:string"])
    whole = ParquetBolt.spec(name="whole", inputs=[other], directory="whole", schema=["value:binary"])
"""


def test_a_topic_without_any_row_is_audited_too(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """With the topology, a topic of which no row at all arrived is missing, or filtered; one of another sink is not."""
    Path("uneven.py").write_text(UNEVEN, encoding="utf-8")
    for topic in ("blank", "elsewhere"):
        project.create_topic(topic)
        project.produce(topic, b"" if topic == "blank" else b"x", partition=0)
    settings = {"kafka.bootstrap": project.bootstrap, "kafka.group": "u", "kafka.retries_max": 0}
    run_topology(load("uneven.py"), config=settings)
    audited = ("uneven", "--topology", "uneven.py", "--set", "kafka.group=u")
    assert run(project, *audited) == 0
    out = capsys.readouterr().out
    assert "blank[0]" in out
    assert "elsewhere" not in out
    project.produce("blank", b"not read yet", partition=0)
    assert run(project, *audited) == 10
    assert "1 missing (blank[0]@1)" in capsys.readouterr().out
    assert run(project, *audited, "--topic", "lines") == 0


def test_topics_by_pattern_are_audited_too(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """A topic that matches the topology's pattern and was never read is missing; its own dead letters are no input."""
    text = UNEVEN.replace('topics=["blank", "lines"]', 'pattern="blank|lines|u[.].*"')
    Path("uneven.py").write_text(text, encoding="utf-8")
    for topic in ("elsewhere", "u.dead-letters"):
        project.create_topic(topic)
    run_topology(load("uneven.py"), config={"kafka.bootstrap": project.bootstrap, "kafka.group": "u"})
    audited = ("uneven", "--topology", "uneven.py", "--set", "kafka.group=u")
    assert run(project, *audited) == 0
    assert "u.dead-letters[" not in capsys.readouterr().out
    project.create_topic("blank")
    project.produce("blank", b"not read yet", partition=0)
    assert run(project, *audited) == 10
    assert "1 missing (blank[0]@0)" in capsys.readouterr().out


def test_a_topic_that_kafka_does_not_have_is_named(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """What the topology reads and nobody can compare is in a note; where it is all there is, it is an error."""
    Path("uneven.py").write_text(UNEVEN, encoding="utf-8")
    for topic in ("blank", "elsewhere"):
        project.create_topic(topic)
    run_topology(load("uneven.py"), config={"kafka.bootstrap": project.bootstrap, "kafka.group": "u"})
    project.delete_topic("blank")
    assert run(project, "uneven", "--topology", "uneven.py", "--set", "kafka.group=u") == 0
    assert "note: the topology reads blank, which does not exist in Kafka" in capsys.readouterr().out
    Path("uneven.py").write_text(UNEVEN.replace('"blank", "lines"', '"blank"'), encoding="utf-8")
    Path("nothing").mkdir()
    with pytest.raises(SinkError, match="nothing to audit: its log does not name a topic, and blank does not exist"):
        run(project, "nothing", "--topology", "uneven.py", "--set", "words:parquet.directory=nothing")


def test_a_directory_of_filtered_records_alone_is_exact(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """A topology all of whose records yield no row needs no --topic: it names the topics itself."""
    Path("uneven.py").write_text(UNEVEN.replace('"blank", "lines"', '"blank"'), encoding="utf-8")
    for topic in ("blank", "elsewhere"):
        project.create_topic(topic)
    project.produce("blank", b"", partition=0)
    run_topology(load("uneven.py"), config={"kafka.bootstrap": project.bootstrap, "kafka.group": "u"})
    assert run(project, "uneven", "--topology", "uneven.py") == 0
    assert "1 filtered" in capsys.readouterr().out


def test_two_rows_with_one_identity_are_told(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that the sink takes for replays of each other are a finding that names origin.child."""
    Path("failing.py").write_text(FAILING, encoding="utf-8")
    settings = {"kafka.bootstrap": project.bootstrap, "kafka.group": "d", "kafka.retries_max": 0}
    run_topology(load("failing.py", "Doubling"), config=settings)
    assert run(project, "rows", "--topology", "failing.py", "--class", "Doubling", "--to", "3") != 0
    assert "two rows with one identity: a bolt must use origin.child" in capsys.readouterr().out


def test_the_verdict_names_the_option_that_tells_more(project: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the topology a verdict with missing offsets says how to tell filtered records from them."""
    forget_runs("words")
    assert run(project, "words") == 10
    assert "--topology FILE tells them apart" in capsys.readouterr().out
    run(project, "words", *WITH_TOPOLOGY)
    assert "tells them apart" not in capsys.readouterr().out


def test_an_end_before_the_start_is_refused(project: FakeKafka) -> None:
    """A range that is the wrong way round is an error and not exact."""
    with pytest.raises(ConfigError, match="--to 2 is before --from 5"):
        run(project, "words", "--from", "5", "--to", "2")

"""The audit with nothing to audit, with concurrent writers, and with files that are not a sink's."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka.structs import OffsetAndMetadata

from downspout import offset_ranges
from downspout.audit import AuditReport, AuditWindow
from downspout.audit import kafka as witness
from downspout.audit import output_files as files
from downspout.audit.audit import audit
from downspout.dead_letters import DeadLetters
from downspout.errors import BrokerError, SinkError
from downspout.kafka import TopicPartition, Unreadable
from downspout.offset_ranges import OffsetRanges
from downspout.sink import FENCE, ORIGIN_SCHEMA, CommitLog, Coverage, DataFile, Entry, Layout, Stream
from downspout.testing import FakeKafka
from tests.spout.spout_driver import Kafka

TOPIC = "orders"
PARTITION = TopicPartition(TOPIC, 0)


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    """A Kafka with ten records, offsets 0 to 9, in one partition."""
    bare_kafka.create_topic(TOPIC)
    for number in range(10):
        bare_kafka.produce(TOPIC, str(number).encode(), partition=0)
    return bare_kafka


def put(
    directory: Path,
    topic_id: str,
    offsets: Sequence[int],
    *,
    table: pa.Table | None = None,
    origins: bool = True,
    staged: bool = False,
) -> str:
    """Commit a file with a row per offset, or with another content, and return its name."""
    log = CommitLog(directory)
    log.refresh()
    covered, name = Coverage(), f"part-{log.length}.parquet"
    if origins:
        covered.add(Stream(TOPIC, topic_id, 0, ""), offsets)
    rows = [{"_topic": TOPIC, "_topic_id": topic_id, "_partition": 0, "_offset": o, "_path": ""} for o in offsets]
    path = Layout(directory).staged(name) if staged else directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=ORIGIN_SCHEMA) if table is None else table, path)
    entry = Entry(log.length, "w", "topo", ("n:int64",), 1, (DataFile(name, len(rows), path.stat().st_size),), covered)
    assert log.append(entry)
    return name


def kinds(report: AuditReport) -> dict[str, Any]:
    (part,) = report.partitions
    return part.offsets


# --- nothing to audit --------------------------------------------------------------------------------------


def test_an_empty_directory_is_not_called_exact(tmp_path: Path, kafka: Kafka) -> None:
    """Where there are neither files nor a log, the audit says so instead of finding nothing wrong."""
    (tmp_path / "notes.txt").write_text("no Parquet")
    with pytest.raises(SinkError, match="nothing to audit"):
        audit(tmp_path, cluster=kafka)
    with pytest.raises(SinkError, match="nothing to audit"):
        audit(tmp_path)
    assert kinds(audit(tmp_path, cluster=kafka, topics=[TOPIC])) == {"missing": [(0, 10)]}


def test_a_log_without_a_flush_is_not_called_exact(tmp_path: Path, kafka: Kafka) -> None:
    """Where the log names no record yet, nobody knows which topics are meant: an error, unless --topic names them."""
    assert CommitLog(tmp_path).append(Entry(0, "w", "topo", ("n:int64",), 1, kind=FENCE, fenced=("v",)))
    with pytest.raises(SinkError, match="nothing to audit: no flush is committed yet"):
        audit(tmp_path, cluster=kafka, group="g")
    assert kinds(audit(tmp_path, cluster=kafka, topics=[TOPIC])) == {"missing": [(0, 10)]}


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="is not a directory"):
        audit(tmp_path / "file")


def test_rows_without_origins_are_not_called_exact(tmp_path: Path, kafka: Kafka) -> None:
    """A directory none of whose rows tells where it came from cannot be audited, and the error says why."""
    put(tmp_path, "", [0, 1], table=pa.table({"n": [0, 1]}), origins=False)
    with pytest.raises(SinkError, match="none of its 2 rows has an origin"):
        audit(tmp_path, cluster=kafka)


def test_a_dead_letter_topic_that_is_not_there_is_noted(tmp_path: Path, kafka: Kafka) -> None:
    """A dead-letter topic that does not exist may never have been needed, or be misspelt: the report says so."""
    put(tmp_path, kafka.topic_id(TOPIC), range(10))
    report = audit(tmp_path, cluster=kafka, dead_letters="tpyo")
    assert report.exit_code == 0
    assert "topic tpyo does not exist, so it has no dead letters" in report.notes


# --- others at work ----------------------------------------------------------------------------------------


def test_a_commit_after_the_listing_is_found(tmp_path: Path, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that comes into sight after the files were listed and before the log is read counts as in sight."""
    put(tmp_path, kafka.topic_id(TOPIC), range(5))
    real = files.visible_files

    def racing(directory: Path) -> list[Path]:
        listed = list(real(directory))
        put(tmp_path, kafka.topic_id(TOPIC), range(5, 10))
        return listed

    monkeypatch.setattr(files, "visible_files", racing)
    report = audit(tmp_path, cluster=kafka)
    assert (report.exit_code, kinds(report), report.found.file_count) == (0, {}, 2)


def test_a_group_ends_the_audit_at_its_commit(tmp_path: Path, kafka: Kafka) -> None:
    """With a group, records beyond its commit are not asked for, and those below it are."""
    put(tmp_path, kafka.topic_id(TOPIC), [0, 1, 2, 4, 7])
    consumer = kafka.consumer(group="g")
    consumer.commit({PARTITION: OffsetAndMetadata(3, "", -1)})
    report = audit(tmp_path, cluster=kafka, group="g")
    assert (report.exit_code, kinds(report)) == (0, {})
    consumer.commit({PARTITION: OffsetAndMetadata(6, "", -1)})
    assert kinds(audit(tmp_path, cluster=kafka, group="g")) == {"missing": [(3, 4), (5, 6)]}
    assert kinds(audit(tmp_path, cluster=kafka, group="g", windows={0: AuditWindow(0, 5)})) == {"missing": [(3, 4)]}
    assert kinds(audit(tmp_path, cluster=kafka)) == {"missing": [(3, 4), (5, 7), (8, 10)]}


@pytest.mark.slow
def test_what_is_staged_beyond_a_groups_commit_is_no_problem(tmp_path: Path, kafka: Kafka) -> None:
    """A flush between its log entry and its renames is a matter of course while a topology runs."""
    put(tmp_path, kafka.topic_id(TOPIC), range(5))
    put(tmp_path, kafka.topic_id(TOPIC), range(5, 10), staged=True)
    kafka.consumer(group="g").commit({PARTITION: OffsetAndMetadata(5, "", -1)})
    assert audit(tmp_path, cluster=kafka, group="g").exit_code == 0
    report = audit(tmp_path, cluster=kafka)
    assert (report.exit_code, kinds(report)) == (10, {"missing": [(5, 10)]})


def test_a_group_without_commits_is_an_error(tmp_path: Path, kafka: Kafka) -> None:
    """A group that never committed these topics is rather misspelt than at offset 0."""
    put(tmp_path, kafka.topic_id(TOPIC), range(10))
    with pytest.raises(BrokerError, match="group tpyo has committed nothing for orders"):
        audit(tmp_path, cluster=kafka, group="tpyo")


# --- duplicates --------------------------------------------------------------------------------------------


def test_duplicates_name_their_files(tmp_path: Path, kafka: Kafka) -> None:
    """The files that hold rows of repeated offsets are named, with how many, and no others."""
    first = put(tmp_path, kafka.topic_id(TOPIC), range(3))
    put(tmp_path, kafka.topic_id(TOPIC), range(3, 10))
    shutil.copy(tmp_path / first, tmp_path / "copy.parquet")
    shutil.copy(tmp_path / first, tmp_path / "again.parquet")
    report = audit(tmp_path, cluster=kafka)
    assert report.found.repeated_in == {first: 3, "again.parquet": 3, "copy.parquet": 3}
    assert report.as_dict()["files"]["repeated"] == report.found.repeated_in
    assert f"duplicate rows are in 3 files: again.parquet (3), copy.parquet (3), {first} (3)" in report.notes
    assert (report.exit_code, kinds(report)) == (11, {"duplicate": [(0, 3)]})
    assert (report.partitions[0].rows_of["duplicate"], report.partitions[0].rows) == (6, 16)


def test_duplicates_outside_the_window_do_not_count(tmp_path: Path, kafka: Kafka) -> None:
    """Further rows are counted only where their offset is audited."""
    put(tmp_path, kafka.topic_id(TOPIC), [0, 0, 0, 1, 2, 3, 4, 4])
    report = audit(tmp_path, cluster=kafka, windows={None: AuditWindow(1, 5)})
    assert (report.partitions[0].rows, report.partitions[0].rows_of) == (5, {"duplicate": 1})
    assert audit(tmp_path, cluster=kafka, windows={None: AuditWindow(1, 4)}).exit_code == 0


def test_a_row_with_and_one_without_the_topics_id_are_two(tmp_path: Path, kafka: Kafka) -> None:
    put(tmp_path, kafka.topic_id(TOPIC), range(10))
    put(tmp_path, "", [4])
    report = audit(tmp_path, cluster=kafka)
    assert (report.exit_code, kinds(report)) == (11, {"duplicate": [(4, 5)]})


# --- files that are not a sink's ---------------------------------------------------------------------------

FOREIGN: dict[str, dict[str, Any]] = {
    "offsets as text": {"_offset": ["x"]},
    "offsets with a fraction": {"_offset": [2.5]},
    "partition as text": {"_partition": ["0"]},
    "topic as a number": {"_topic": [1]},
    "path as a list": {"_path": [[""]]},
}


@pytest.mark.parametrize("columns", FOREIGN.values(), ids=FOREIGN)
def test_columns_of_other_types_are_no_origins(tmp_path: Path, kafka: Kafka, columns: dict[str, Any]) -> None:
    """A file whose origin columns have other types is named as unreadable, and not guessed at."""
    put(tmp_path, kafka.topic_id(TOPIC), range(10))
    usual: dict[str, Any] = {"_topic": [TOPIC], "_topic_id": [""], "_partition": [0], "_offset": [2], "_path": [""]}
    pq.write_table(pa.table({**usual, **columns}), tmp_path / "foreign.parquet")
    report = audit(tmp_path, cluster=kafka)
    assert list(report.found.unreadable) == ["foreign.parquet"]
    assert (report.exit_code, kinds(report)) == (10, {})
    assert "1 file unreadable (foreign.parquet)" in report.verdict


def test_half_an_origin_is_none(tmp_path: Path, kafka: Kafka) -> None:
    """A row with a null in its origin stands for no record."""
    half = {"_topic": TOPIC, "_topic_id": kafka.topic_id(TOPIC), "_partition": None, "_offset": 9, "_path": ""}
    put(tmp_path, kafka.topic_id(TOPIC), range(9))
    pq.write_table(pa.Table.from_pylist([half], schema=ORIGIN_SCHEMA), tmp_path / "half.parquet")
    report = audit(tmp_path, cluster=kafka)
    assert report.found.without_origin == 1
    assert kinds(report) == {"missing": [(9, 10)]}


def test_a_file_of_no_rows_is_named_in_the_verdict(tmp_path: Path, kafka: Kafka) -> None:
    """Where only a file is odd and no offset, the verdict names the file instead of counting to zero."""
    put(tmp_path, kafka.topic_id(TOPIC), range(10))
    pq.write_table(ORIGIN_SCHEMA.empty_table(), tmp_path / "empty.parquet")
    report = audit(tmp_path, cluster=kafka)
    assert report.exit_code == 13
    assert report.verdict.startswith("NOT exact: 1 file unknown to the log (empty.parquet); 10 offsets")


# --- what Kafka cannot give whole --------------------------------------------------------------------------


def test_a_letter_stands_for_all_offsets_of_a_damaged_batch(tmp_path: Path, kafka: Kafka) -> None:
    """They are dead-lettered and not missing, and a note says that the letter does not hold the records."""
    put(tmp_path, kafka.topic_id(TOPIC), [0, 1, 2, 7, 8, 9])
    letters = DeadLetters(kafka, "dead")
    record = next(r for r in kafka.records(TOPIC) if r.offset == 3)
    letters.queue(
        record, attempts=1, first_failure_ms=1, last_failure_ms=1, failure=None, topic_id=kafka.topic_id(TOPIC),
        unreadable=Unreadable(PARTITION, 3, 7, "its check sum is wrong"),
    )  # fmt: skip
    letters.flush()
    letters.close()
    report = audit(tmp_path, cluster=kafka, dead_letters="dead")
    assert (report.exit_code, kinds(report)) == (0, {"dead_lettered": [(3, 7)]})
    assert any("without the whole record" in note and "4 offsets" in note for note in report.notes)


@pytest.mark.fake_only("a real broker's log is damaged in tests/broker/test_unreadable_broker.py")
def test_a_damaged_batch_without_a_letter_is_missing(tmp_path: Path, kafka: FakeKafka) -> None:
    """The audit reads on behind it, names its offsets, and calls none of them compacted or filtered."""
    put(tmp_path, kafka.topic_id(TOPIC), [0, 1, 2, 8, 9])
    kafka.damage(TOPIC, 0, 3, 7)
    report = audit(tmp_path, cluster=kafka)
    assert kinds(report) == {"missing": [(3, 8)]}
    assert any("Kafka cannot return these records in full" in note for note in report.notes)


class Counting(list[tuple[int, int]]):
    """Ranges that count how many of them were touched; to take one off the front touches all behind it."""

    touched = 0

    def __getitem__(self, at: Any) -> Any:
        self.touched += 1
        return super().__getitem__(at)

    def pop(self, at: Any = -1) -> Any:
        self.touched += len(self)
        return super().pop(at)


@pytest.mark.fake_only("what it counts are steps of the audit, whatever Kafka")
def test_many_small_ranges_are_read_in_linear_time(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topology that filters every second record leaves a range for each: none costs more than the others."""
    parts = Counting((offset, offset + 1) for offset in range(0, 2_000, 2))
    for number in range(10, 2_000):
        kafka.produce(TOPIC, str(number).encode(), partition=0)
    monkeypatch.setattr(witness, "_groups", lambda wanted: [(0, 2_000, parts)])
    with closing(witness.KafkaSide(kafka)) as side:
        (log,) = side.logs(TOPIC)
        assert [record.offset for record in side.records(log, list(parts))] == list(range(0, 2_000, 2))
    assert parts.touched < 10 * 2_000


@pytest.mark.fake_only("a real broker's log is damaged in tests/broker/test_unreadable_broker.py")
def test_many_records_that_kafka_cannot_give_whole_take_linear_time(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each letter that holds only a part of its record, and each such record, costs as much as the first one."""
    united = 0
    union = offset_ranges.union

    def counting(*sets: Any) -> OffsetRanges:
        nonlocal united
        sets = tuple(list(each) for each in sets)
        united += sum(map(len, sets))
        return union(*sets)

    monkeypatch.setattr(offset_ranges, "union", counting)
    damaged = range(1, 401, 2)
    for number in range(10, 402):
        kafka.produce(TOPIC, str(number).encode(), partition=0)
    letters = DeadLetters(kafka, "dead")
    records = {record.offset: record for record in kafka.records(TOPIC)}
    for offset in damaged:
        kafka.damage(TOPIC, 0, offset, offset + 1)
        letters.queue(
            records[offset], attempts=1, first_failure_ms=1, last_failure_ms=1, failure=None,
            unreadable=Unreadable(PARTITION, offset, offset + 1, "its check sum is wrong"),
        )  # fmt: skip
    letters.flush()
    letters.close()
    named = witness.Letters()
    assert named.read(kafka, "dead")
    assert named.cut == {(TOPIC, 0): [(offset, offset + 1) for offset in damaged]}
    with closing(witness.KafkaSide(kafka)) as side:
        (log,) = side.logs(TOPIC)
        assert [record.offset for record in side.records(log, [(0, 402)])] == [*range(0, 401, 2), 401]
        assert side.unreadable(log) == named.cut[TOPIC, 0]
    assert united < 10 * len(damaged)


@pytest.mark.fake_only("what it counts are steps of the audit, whatever Kafka")
def test_streams_are_sorted_once_however_many_partitions_there_are(
    tmp_path: Path, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition costs as much among many as among few, with Kafka and without."""
    kafka.create_topic("wide", partitions=40)
    log = CommitLog(tmp_path)
    log.refresh()
    covered = Coverage()
    for partition in range(40):
        covered.add(Stream("wide", kafka.topic_id("wide"), partition, ""), [0])
        kafka.produce("wide", b"x", partition=partition)
    rows = [
        {"_topic": "wide", "_topic_id": kafka.topic_id("wide"), "_partition": number, "_offset": 0, "_path": ""}
        for number in range(40)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=ORIGIN_SCHEMA), tmp_path / "part-0.parquet")
    file = DataFile("part-0.parquet", 40, (tmp_path / "part-0.parquet").stat().st_size)
    assert log.append(Entry(0, "w", "topo", ("n:int64",), 1, (file,), covered))
    sorts: list[int] = []
    streams: Any = files.FoundRows.streams.fget
    monkeypatch.setattr(files.FoundRows, "streams", property(lambda found: sorts.append(1) or streams(found)))
    for cluster in (kafka, None):
        report = audit(tmp_path, cluster=cluster)
        assert (report.exit_code, len(report.partitions), sum(part.present for part in report.partitions)) == (
            0,
            40,
            40,
        )
    assert len(sorts) < 20

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolts.aggregate import AggregateBolt
from downspout.audit import AuditReport, AuditWindow, visible_files
from downspout.audit.audit import audit
from downspout.cli import main
from downspout.dead_letters import DeadLetters
from downspout.errors import BrokerError, ConfigError, SinkError
from downspout.kafka import OffsetAndMetadata, Record, TopicPartition
from downspout.sink import CommitLog, Identities, Layout, SinkWriter
from downspout.testing import FakeKafka
from tests.sampling import examples
from tests.sink.support import Origins, rows_of, sink, tup, write_rows
from tests.spout.spout_driver import Kafka

TOPIC = "orders"


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    """A Kafka with ten records, offsets 0 to 9, in one partition."""
    bare_kafka.create_topic(TOPIC)
    for number in range(10):
        bare_kafka.produce(TOPIC, str(number).encode(), partition=0)
    return bare_kafka


def put(directory: Path, kafka: Kafka, offsets: Sequence[int], path: str = "", writer: str = "w") -> None:
    write_rows(directory, [(TOPIC, kafka.topic_id(TOPIC), 0, offset, path) for offset in offsets], writer=writer)


def files(directory: Path) -> list[Path]:
    return list(visible_files(directory))


def kinds(report: AuditReport) -> dict[str, Any]:
    (part,) = report.partitions
    return part.offsets


def test_a_complete_directory_is_exact_without_reading_a_record(tmp_path: Path, kafka: Kafka) -> None:
    """Where every offset has its row, the audit says so, and asks Kafka for no record."""
    put(tmp_path, kafka, range(6))
    put(tmp_path, kafka, range(6, 10), writer="v")
    kafka.faults.fail_next("poll", RuntimeError("the audit read records"))
    report = audit(tmp_path, cluster=kafka)
    assert (report.exit_code, kinds(report)) == (0, {})
    assert report.verdict == "exact: 10 offsets are in the files, each exactly once"
    assert report.notes == ["values were not compared with their hashes: --deep does"]


def test_a_record_without_a_row_is_missing(tmp_path: Path, kafka: Kafka) -> None:
    """A record that left no trace anywhere is missing, and the verdict names its place."""
    put(tmp_path, kafka, [0, 1, 2, 4, 5, 6, 7, 9])
    report = audit(tmp_path, cluster=kafka)
    assert (report.exit_code, kinds(report)) == (10, {"missing": [(3, 4), (8, 9)]})
    assert "NOT exact: 2 missing (orders[0]@3, @8)" in report.verdict


def moved(directory: Path, kafka: Kafka, at: int, to: int) -> None:
    consumer = kafka.consumer(group="g")
    consumer.commit({TopicPartition(TOPIC, 0): OffsetAndMetadata(at, "", -1)})
    consumer.close()
    words = ["offsets", "seek", "g", "--to-offset", str(to), "--sink", str(directory), "--yes"]
    assert main([*words, "--bootstrap", kafka.bootstrap]) == 0


def test_what_a_seek_skipped_is_explained(tmp_path: Path, kafka: Kafka) -> None:
    """Offsets that a group was moved past are skipped, not missing, and not lost where they are gone from Kafka too."""
    put(tmp_path, kafka, [0, 1, 2, 7, 9])
    moved(tmp_path, kafka, 3, 6)
    report = audit(tmp_path, cluster=kafka)
    assert (report.exit_code, kinds(report)) == (10, {"skipped": [(3, 6)], "missing": [(6, 7), (8, 9)]})
    put(tmp_path, kafka, [6, 8], writer="v")
    kafka.delete_records(TOPIC, 0, 5)
    report = audit(tmp_path, cluster=kafka)
    assert (report.exit_code, kinds(report)) == (0, {"skipped": [(3, 6)]})
    assert report.verdict == "exact: 7 offsets are in the files, each exactly once; 3 skipped"


def test_what_a_seek_back_reads_again_is_not_skipped_any_more(tmp_path: Path, kafka: Kafka) -> None:
    """After the way back the records are to have rows, and a torn note explains nothing."""
    put(tmp_path, kafka, [0, 1, 2, 8, 9])
    moved(tmp_path, kafka, 3, 8)
    moved(tmp_path, kafka, 8, 6)
    assert kinds(audit(tmp_path, cluster=kafka)) == {"skipped": [(3, 6)], "missing": [(6, 8)]}
    path = Layout(tmp_path).skips
    path.write_bytes(path.read_bytes()[:-9])
    assert kinds(audit(tmp_path, cluster=kafka)) == {"missing": [(3, 8)]}


def test_what_was_read_again_without_a_word_is_not_skipped_any_more(tmp_path: Path, kafka: Kafka) -> None:
    """A row in a range that a seek had noted shows that the group was there again: what lacks there is missing."""
    put(tmp_path, kafka, [0, 1, 2, 8, 9])
    moved(tmp_path, kafka, 3, 6)
    put(tmp_path, kafka, [6, 7], writer="v")
    assert kinds(audit(tmp_path, cluster=kafka)) == {"skipped": [(3, 6)]}
    put(tmp_path, kafka, [3, 5], writer="x")
    report = audit(tmp_path, cluster=kafka)
    assert kinds(report) == {"missing": [(4, 5)]}
    assert any("orders[0]@4: a seek skipped" in note for note in report.notes)
    moved(tmp_path, kafka, 4, 7)
    assert kinds(audit(tmp_path, cluster=kafka)) == {"skipped": [(4, 5)]}


def test_a_note_that_cannot_be_made_says_that_the_group_was_moved(
    tmp_path: Path, kafka: Kafka, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, kafka, [0, 1, 2])
    moved(tmp_path, kafka, 3, 3)
    Layout(tmp_path).skips.unlink()
    Layout(tmp_path).skips.mkdir()
    words = ["offsets", "seek", "g", "--to-offset", "6", "--sink", str(tmp_path), "--yes"]
    assert main([*words, "--bootstrap", kafka.bootstrap]) == SinkError.exit_code
    said = capsys.readouterr().err
    assert "group g was moved, but" in said
    assert "then move the group back and here again" in said
    assert kafka.committed("g")[TopicPartition(TOPIC, 0)].offset == 6


def test_a_seek_says_what_the_sink_has(tmp_path: Path, kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> None:
    """Records that are read again and have their rows are left out; a directory without a log is refused."""
    put(tmp_path, kafka, [0, 1, 2, 4])
    moved(tmp_path, kafka, 6, 1)
    said = capsys.readouterr().out
    assert f"orders[0]: {tmp_path} has 3 of the 5 offsets that are read again, and will skip them" in said
    empty = tmp_path / "empty"
    words = ["offsets", "seek", "g", "--to-latest", "--sink", str(empty), "--yes", "--bootstrap", kafka.bootstrap]
    assert main(words) == SinkError.exit_code
    assert "empty has no commit log" in capsys.readouterr().err
    assert kafka.committed("g")[TopicPartition(TOPIC, 0)].offset == 1


def test_a_topic_of_which_nothing_was_written_is_missing(tmp_path: Path, kafka: Kafka) -> None:
    report = audit(tmp_path, cluster=kafka, topics=[TOPIC])
    assert (report.exit_code, kinds(report)) == (10, {"missing": [(0, 10)]})


def test_a_removed_file_is_missing(tmp_path: Path, kafka: Kafka) -> None:
    """Rows whose file somebody removed are missing, even if Kafka has forgotten the records too."""
    put(tmp_path, kafka, range(5))
    put(tmp_path, kafka, range(5, 10), writer="v")
    next(path for path in files(tmp_path) if "-v-" in path.name).unlink()
    kafka.delete_records(TOPIC, 0, 7)
    report = audit(tmp_path, cluster=kafka)
    assert (report.exit_code, kinds(report)) == (10, {"missing": [(5, 10)]})
    assert any("gone" in note for note in report.notes)


@pytest.mark.parametrize("copies", [["copy.parquet"], ["copy.parquet", "month=7/copy.parquet"]], ids=["once", "twice"])
def test_a_copied_file_is_a_duplicate(tmp_path: Path, kafka: Kafka, copies: list[str]) -> None:
    """Each copy that somebody made of a data file, in a folder too, shows every row of it once more."""
    put(tmp_path, kafka, range(10))
    (path,) = files(tmp_path)
    for copy in copies:
        tmp_path.joinpath(copy).parent.mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / copy)
    for cluster in (kafka, None):
        report = audit(tmp_path, cluster=cluster)
        assert (report.exit_code, kinds(report)) == (11, {"duplicate": [(0, 10)]})
        assert report.found.unknown == copies
        assert report.partitions[0].rows_of["duplicate"] == 10 * len(copies)


def test_a_row_that_the_log_does_not_know_is_extra(tmp_path: Path, kafka: Kafka) -> None:
    """A row that was written past the log is extra, though its record exists and has no other row."""
    put(tmp_path, kafka, range(9))
    table = pa.table(Origins([(TOPIC, kafka.topic_id(TOPIC), 0, 9, "")]).columns())
    pq.write_table(table, tmp_path / "by-hand.parquet")
    report = audit(tmp_path, cluster=kafka)
    assert (report.exit_code, kinds(report)) == (13, {"extra": [(9, 10)]})


def test_a_file_edited_in_place_is_noticed(tmp_path: Path, kafka: Kafka) -> None:
    """A file whose content was replaced shows by what is no longer in it and by what is new."""
    put(tmp_path, kafka, range(10))
    (path,) = files(tmp_path)
    origins = [(TOPIC, kafka.topic_id(TOPIC), 0, offset, "") for offset in [*range(9), 4]]
    pq.write_table(pa.table(Origins(origins).columns()), path)
    report = audit(tmp_path, cluster=kafka)
    assert (report.exit_code, kinds(report)) == (10, {"missing": [(9, 10)], "duplicate": [(4, 5)]})
    assert report.problems == ["missing", "duplicate", "extra"]


def test_an_unreadable_file_is_no_crash(tmp_path: Path, kafka: Kafka) -> None:
    """Rows of a file that is no Parquet any more are missing, and the file is named."""
    put(tmp_path, kafka, range(10))
    (path,) = files(tmp_path)
    path.write_bytes(b"PAR1 not really")
    report = audit(tmp_path, cluster=kafka)
    assert (report.exit_code, kinds(report)) == (10, {"missing": [(0, 10)]})
    assert list(report.found.unreadable) == [path.name]


@pytest.mark.slow
def test_what_is_committed_and_not_in_sight_is_missing(tmp_path: Path, kafka: Kafka) -> None:
    """A file that waits for its renaming cannot be read yet: its rows are missing, and the note says what helps."""
    put(tmp_path, kafka, range(10))
    (path,) = files(tmp_path)
    path.rename(Layout(tmp_path).staged(path.name))
    report = audit(tmp_path, cluster=kafka)
    assert report.exit_code == 10
    assert any("not yet visible" in note for note in report.notes)
    SinkWriter(tmp_path, topology="t", component="sink", columns=["n:int64"], writer="next").open()
    assert audit(tmp_path, cluster=kafka).exit_code == 0


def test_staged_leftovers_are_harmless(tmp_path: Path, kafka: Kafka) -> None:
    """A staged file that no entry names is mentioned and changes nothing."""
    put(tmp_path, kafka, range(10))
    (Layout(tmp_path).staging / "part-dead-0.hidden").write_bytes(b"half")
    report = audit(tmp_path, cluster=kafka)
    assert (report.exit_code, report.found.leftovers) == (0, 1)


@pytest.mark.fake_only("the cleaner itself decides which records it removes, and when")
def test_offsets_without_records_are_compacted(tmp_path: Path, kafka: Kafka) -> None:
    """Offsets at which Kafka has no record (compaction, markers, aborted transactions) need no row."""
    aborted = kafka.transaction()
    aborted.send(TOPIC, b"never", partition=0)
    aborted.abort()
    kafka.remove_offsets(TOPIC, 0, [2, 3, 7])
    put(tmp_path, kafka, [0, 1, 4, 5, 6, 8, 9])
    report = audit(tmp_path, cluster=kafka)
    assert (report.exit_code, kinds(report)) == (0, {"compacted": [(2, 4), (7, 8), (10, 12)]})


def test_offsets_below_the_log_are_lost_unless_covered(tmp_path: Path, kafka: Kafka) -> None:
    """Retention that was faster than the topology lost records; rows written before it are right."""
    put(tmp_path, kafka, [0, 1, 2, 5, 6, 7, 8, 9])
    kafka.delete_records(TOPIC, 0, 4)
    report = audit(tmp_path, cluster=kafka)
    assert (report.exit_code, kinds(report)) == (10, {"lost": [(3, 4)], "missing": [(4, 5)]})
    assert audit(tmp_path, cluster=kafka, windows={None: AuditWindow(0, 4)}).exit_code == 12


def test_dead_letters_explain_absent_rows(tmp_path: Path, kafka: Kafka) -> None:
    put(tmp_path, kafka, [0, 1, 2, 4, 5, 6, 7, 9])
    letters = DeadLetters(kafka, "dead", timeout_s=60.0)
    record = kafka.records(TOPIC)[3]
    letters.write(record, attempts=3, first_failure_ms=1, last_failure_ms=2, failure=None)
    kafka.produce("other", b"x")
    letters.write(kafka.records("other")[0], attempts=1, first_failure_ms=1, last_failure_ms=1, failure=None)
    report = audit(tmp_path, cluster=kafka, topics=[TOPIC], dead_letters="dead")
    assert (report.exit_code, kinds(report)) == (10, {"dead_lettered": [(3, 4)], "missing": [(8, 9)]})


def test_rows_of_the_stream_late_explain_absent_rows(tmp_path: Path, kafka: Kafka) -> None:
    """A record whose row went to another directory is late; one in neither is missing, and an earlier topic is none."""
    put(tmp_path / "hours", kafka, [0, 1, 2, 4, 5, 6, 7, 9])
    put(tmp_path / "late", kafka, [3, 9])
    write_rows(tmp_path / "late", [(TOPIC, "an earlier topic", 0, 8, ""), ("other", "", 0, 8, "")], writer="v")
    report = audit(tmp_path / "hours", cluster=kafka, late=tmp_path / "late")
    assert (report.exit_code, kinds(report)) == (10, {"late": [(3, 4)], "missing": [(8, 9)]})
    assert audit(tmp_path / "hours", cluster=kafka).exit_code == 10
    with pytest.raises(ConfigError, match="does not hold the stream 'late'"):
        audit(tmp_path / "hours", cluster=kafka, late=tmp_path / "hours")
    put(tmp_path / "late", kafka, [8], writer="u")
    report = audit(tmp_path / "hours", cluster=kafka, late=tmp_path / "late")
    assert report.verdict == "exact: 8 offsets are in the files, each exactly once; 2 late"


def test_filtered_needs_the_topology(tmp_path: Path, kafka: Kafka) -> None:
    """A record without a row is filtered exactly if the topology, run again on it, makes none."""
    put(tmp_path, kafka, [0, 1, 2, 4, 5, 6, 7, 9])
    asked: list[int] = []

    def replay(records: Sequence[Record]) -> Mapping[tuple[str, int, int], Sequence[str]]:
        asked.extend(record.offset for record in records)
        return {(TOPIC, 0, 8): [""]}

    report = audit(tmp_path, cluster=kafka, replay=replay)
    assert (report.exit_code, kinds(report)) == (10, {"filtered": [(3, 4)], "missing": [(8, 9)]})
    assert asked == [3, 8]


def test_each_row_of_a_record_is_audited_with_the_topology(tmp_path: Path, kafka: Kafka) -> None:
    put(tmp_path, kafka, range(10), path="split.0")
    put(tmp_path, kafka, [0, 1, 2, 7], path="split.1", writer="v")
    assert audit(tmp_path, cluster=kafka).exit_code == 0

    def replay(records: Sequence[Record]) -> Mapping[tuple[str, int, int], Sequence[str]]:
        made = {(TOPIC, 0, record.offset): ["split.0"] for record in records if record.offset != 9}
        return made | {(TOPIC, 0, offset): ["split.0", "split.1"] for offset in (0, 1, 2, 3)}

    report = audit(tmp_path, cluster=kafka, replay=replay)
    assert (report.exit_code, kinds(report)) == (10, {"missing": [(3, 4)], "extra": [(7, 8), (9, 10)]})
    assert report.verdict.endswith("@9: the current topology makes no such row from it)")


def test_rows_beyond_the_end_are_extra(tmp_path: Path, kafka: Kafka) -> None:
    """A row for an offset that Kafka does not have is extra, although the log names it."""
    put(tmp_path, kafka, range(12))
    report = audit(tmp_path, cluster=kafka)
    assert (report.exit_code, kinds(report)) == (13, {"extra": [(10, 12)]})


def test_rows_of_an_earlier_topic_are_kept_apart(tmp_path: Path, kafka: Kafka) -> None:
    """Rows of a topic that was deleted and made again stand for none of the new topic's records."""
    put(tmp_path, kafka, range(10))
    kafka.delete_topic(TOPIC)
    kafka.create_topic(TOPIC)
    kafka.produce(TOPIC, b"new", partition=0)
    report = audit(tmp_path, cluster=kafka)
    assert (report.exit_code, kinds(report)) == (10, {"missing": [(0, 1)]})
    assert any("earlier topic" in note for note in report.notes)
    put(tmp_path, kafka, [0], writer="v")
    assert audit(tmp_path, cluster=kafka).exit_code == 0


def test_only_the_window_is_audited(tmp_path: Path, kafka: Kafka) -> None:
    """Offsets outside the window are not looked at, whatever is wrong there."""
    put(tmp_path, kafka, [2, 3, 4, 5])
    assert audit(tmp_path, cluster=kafka, windows={0: AuditWindow(2, 6)}).exit_code == 0
    assert audit(tmp_path, cluster=kafka, windows={0: AuditWindow(1, 6)}).exit_code == 10
    assert kinds(audit(tmp_path, cluster=kafka, windows={None: AuditWindow(5, None)})) == {"missing": [(6, 10)]}


def test_without_kafka_files_are_compared_with_the_log(tmp_path: Path, kafka: Kafka) -> None:
    """Files and log alone show what vanished from the files, and nothing about records that never came."""
    put(tmp_path, kafka, [0, 1])
    put(tmp_path, kafka, [5], writer="v")
    report = audit(tmp_path)
    assert (report.exit_code, report.verdict[:24]) == (0, "exact: 3 offsets are in ")
    next(path for path in files(tmp_path) if "-v-" in path.name).unlink()
    assert kinds(audit(tmp_path)) == {"missing": [(5, 6)]}


def test_a_topic_that_is_gone(tmp_path: Path, kafka: Kafka) -> None:
    """A topic that Kafka no longer has is an error, and the directory can still be compared with its log."""
    put(tmp_path, kafka, range(10))
    kafka.delete_topic(TOPIC)
    with pytest.raises(BrokerError, match=r"topic orders does not exist.*--files-only"):
        audit(tmp_path, cluster=kafka)
    with pytest.raises(BrokerError, match="topic orders does not exist"):
        audit(tmp_path, cluster=kafka, topics=[TOPIC])
    assert audit(tmp_path).exit_code == 0


def test_a_damaged_log_ends_the_audit(tmp_path: Path, kafka: Kafka) -> None:
    """With a log that was edited nothing can be said, so the audit names the entry and stops."""
    put(tmp_path, kafka, range(10))
    entry = CommitLog(tmp_path).path(0)
    entry.write_bytes(entry.read_bytes().replace(b'"number":0', b'"number":1'))
    with pytest.raises(SinkError, match=entry.name):
        audit(tmp_path, cluster=kafka)
    with pytest.raises(SinkError, match="does not exist"):
        audit(tmp_path / "nowhere", cluster=kafka)


AGGREGATES = {
    "parquet.schema": ["word:string"],
    "parquet.keys": ["word"],
    "parquet.aggregates": ["count"],
}


def add_up(directory: Path, kafka: Kafka, offsets: Sequence[int]) -> None:
    bolt = sink(AggregateBolt, directory, fields=["origin", "word"], **AGGREGATES)
    for offset in offsets:
        bolt.process(tup((TOPIC, kafka.topic_id(TOPIC), 0, offset, ""), "a"))
    bolt.drain()


def test_aggregates_are_audited_by_the_log(tmp_path: Path, kafka: Kafka) -> None:
    """For aggregates the log tells which offsets were added up: whole, it is exact; what it lacks is missing."""
    add_up(tmp_path, kafka, range(6))
    assert kinds(audit(tmp_path, cluster=kafka)) == {"missing": [(6, 10)]}
    add_up(tmp_path, kafka, range(4, 10))
    report = audit(tmp_path, cluster=kafka)
    assert (report.exit_code, report.found.aggregates) == (0, True)
    assert report.verdict == "exact: 10 offsets are added up, each exactly once"
    assert sum(row["count"] for row in rows_of(tmp_path)) == 10


def test_an_aggregate_file_that_is_not_as_logged_counts_for_nothing(tmp_path: Path, kafka: Kafka) -> None:
    """Where a file of aggregates was removed, edited or copied, the offsets in it are missing, or its rows extra."""
    add_up(tmp_path, kafka, range(6))
    add_up(tmp_path, kafka, range(6, 10))
    first = sorted(files(tmp_path), key=lambda path: path.stat().st_mtime_ns)[0]
    content = first.read_bytes()
    shutil.copy(first, tmp_path / "copy.parquet")
    assert audit(tmp_path, cluster=kafka).exit_code == 13
    (tmp_path / "copy.parquet").unlink()
    pq.write_table(pa.table({"word": ["a", "b"], "count": [6, 6]}), first)
    assert kinds(audit(tmp_path, cluster=kafka)) == {"missing": [(0, 6)]}
    first.write_bytes(content)
    assert audit(tmp_path, cluster=kafka).exit_code == 0
    first.unlink()
    assert kinds(audit(tmp_path, cluster=kafka)) == {"missing": [(0, 6)]}


@pytest.mark.fake_only("hundreds of examples, each with a cluster of its own")
@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.booleans()), min_size=1, max_size=40),
    st.integers(0, 10),
)
def test_the_audit_equals_a_naive_count(offsets: list[tuple[bool, int, bool]], earliest: int) -> None:
    """Whatever rows, records and dead letters there are, each offset is sorted as a count one by one sorts it."""
    expected: dict[str, set[int]] = {}
    with tempfile.TemporaryDirectory() as folder, FakeKafka("audit-model") as kafka:
        kafka.create_topic(TOPIC)
        origins, letters = [], DeadLetters(kafka, "dead")
        kafka.ensure_topic("dead")
        for offset, (there, rows, dead) in enumerate(offsets):
            kafka.produce(TOPIC, b"x", partition=0)
            origins += [(TOPIC, kafka.topic_id(TOPIC), 0, offset, "")] * rows
            if dead:
                record = kafka.records(TOPIC)[-1]
                letters.write(record, attempts=1, first_failure_ms=1, last_failure_ms=1, failure=None)
            absent = "lost" if offset < earliest else "missing" if there else "compacted"
            if dead:
                absent = "dead_lettered"
            kind = absent if rows == 0 else "duplicate" if rows == 2 else None
            if kind is not None:
                expected.setdefault(kind, set()).add(offset)
        kafka.remove_offsets(TOPIC, 0, [o for o, (there, _, _) in enumerate(offsets) if not there])
        kafka.delete_records(TOPIC, 0, min(earliest, len(offsets)))
        pq.write_table(pa.table(Origins(origins).columns()), f"{folder}/x.parquet")
        report = audit(folder, cluster=kafka, topics=[TOPIC], dead_letters="dead")
    found = {kind: {o for start, end in ranges for o in range(start, end)} for kind, ranges in kinds(report).items()}
    assert found == expected
    codes = {"missing": 10, "duplicate": 11, "lost": 12}
    assert report.exit_code == min((codes[kind] for kind in expected if kind in codes), default=0)


def test_identities_round_trip(tmp_path: Path) -> None:
    """What the audit reads back from files with several topics, partitions and paths is what was written."""
    origins = [
        (t, i, p, o, path)
        for t in ("a", "b")
        for i in ("", "x")
        for p in (0, 3)
        for o in (5, 7)
        for path in ("", "s.1")
    ]
    write_rows(tmp_path, origins)
    found = audit(tmp_path).found
    back = [
        (*stream[:3], o, stream.path) for stream, ranges in found.rows.items() for s, e in ranges for o in range(s, e)
    ]
    assert sorted(back) == sorted(origins)
    assert Identities.of(origins).not_in(CommitLog(tmp_path).coverage).all()

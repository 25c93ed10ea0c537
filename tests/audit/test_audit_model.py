"""The audit against a model that looks at one offset at a time.

Each offset of a partition is given a fate in Kafka (a record, none, below the log's start, beyond its end), in the dead
letters, in the log and in the files. The model says for each offset alone what it is, from the table at the top of
``downspout/audit/audit.py``. The audit, which works on ranges of all offsets at once, must say the same.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from downspout.audit import EXIT_CODES
from downspout.audit.audit import EXPLAINED, audit
from downspout.audit.expected import Replay
from downspout.dead_letters import DeadLetters
from downspout.kafka import Record
from downspout.sink import ORIGIN_SCHEMA, CommitLog, Coverage, DataFile, Entry, Stream
from downspout.testing import FakeKafka
from tests.sampling import examples

pytestmark = pytest.mark.fake_only("hundreds of examples, each with a cluster of its own")

TOPIC, LETTERS = "t", "t.dead"
FILTERED = b"filter me"


@dataclass(frozen=True)
class Fate:
    """What there is of one offset.

    Attributes:
        record: Kafka has a record there.
        filtered: the topology makes no row of it.
        letter: a dead letter names it.
        logged: the commit log covers it.
        rows: how many rows it has in files that the log names.
        stray: how many in a file that the log does not name.
    """

    record: bool
    filtered: bool
    letter: bool
    logged: bool
    rows: int
    stray: int


USUAL = Fate(record=True, filtered=False, letter=False, logged=True, rows=1, stray=0)
fates = st.lists(
    st.just(USUAL)
    | st.builds(
        Fate,
        record=st.booleans(),
        filtered=st.booleans(),
        letter=st.booleans(),
        logged=st.booleans(),
        rows=st.integers(0, 2),
        stray=st.sampled_from([0, 0, 0, 1]),
    ),
    min_size=1,
    max_size=12,
)


def kinds(fate: Fate, *, offset: int, earliest: int, topology: bool) -> set[str]:
    """Return what the table says of one offset; the empty set is a row that is present and nothing else."""
    if rows := fate.rows + fate.stray:
        return {kind for kind, holds in (("duplicate", rows > 1), ("extra", not fate.logged)) if holds}
    if fate.logged:
        return {"missing"}
    if fate.letter:
        return {"dead_lettered"}
    if offset < earliest:
        return {"lost"}
    if not fate.record:
        return {"compacted"}
    return {"filtered" if topology and fate.filtered else "missing"}


def write_file(directory: Path, name: str, offsets: Sequence[int], topic_id: str) -> DataFile:
    rows = [{"_topic": TOPIC, "_topic_id": topic_id, "_partition": 0, "_offset": o, "_path": ""} for o in offsets]
    pq.write_table(pa.Table.from_pylist(rows, schema=ORIGIN_SCHEMA), directory / name)
    return DataFile(name, len(rows), (directory / name).stat().st_size)


def build(directory: Path, kafka: FakeKafka, fates: Sequence[Fate], earliest: int, batch: int) -> None:
    """Make directory, log, topic and dead letters as the fates say; ``batch`` offsets to an entry."""
    kafka.create_topic(TOPIC)
    letters = DeadLetters(kafka, LETTERS)
    for fate in fates:
        kafka.produce(TOPIC, FILTERED if fate.filtered else b"value")
        if fate.letter:
            record = kafka.records(TOPIC)[-1]
            letters.write(record, attempts=1, first_failure_ms=1, last_failure_ms=1, failure=None)
    kafka.remove_offsets(TOPIC, 0, [offset for offset, fate in enumerate(fates) if not fate.record])
    kafka.delete_records(TOPIC, 0, before=earliest)
    log, topic_id = CommitLog(directory), kafka.topic_id(TOPIC)
    for start in range(0, len(fates), batch):
        part = list(enumerate(fates))[start : start + batch]
        covered = Coverage()
        covered.add(Stream(TOPIC, topic_id, 0, ""), [offset for offset, fate in part if fate.logged])
        offsets = [offset for offset, fate in part for _ in range(fate.rows)]
        files = (write_file(directory, f"part-{start}.parquet", offsets, topic_id),) if offsets else ()
        log.append(Entry(log.length, "w", "topo", ("n:int64",), 1, files, covered))
    if stray := [offset for offset, fate in enumerate(fates) for _ in range(fate.stray)]:
        write_file(directory, "stray.parquet", stray, topic_id)


def run_again(records: Sequence[Record]) -> Mapping[tuple[str, int, int], list[str]]:
    """Stand for a topology that makes one row of each record that is not to be filtered."""
    return {(r.topic, r.partition, r.offset): [""] for r in records if r.value != FILTERED}


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None)
@given(fates, st.integers(0, 14), st.integers(1, 5), st.booleans())
@example([replace(USUAL, rows=0, stray=1)], 0, 1, False)  # the right rows, in a file that the log does not name
def test_the_audit_says_of_each_offset_what_the_table_says(
    fates: list[Fate], earliest: int, batch: int, topology: bool
) -> None:
    """Whatever happened to whichever offsets, the audit lists each under the kinds that the model gives it."""
    earliest = min(earliest, len(fates))
    replay: Replay | None = run_again if topology else None
    with tempfile.TemporaryDirectory() as folder, FakeKafka("audit-model") as kafka:
        build(Path(folder), kafka, fates, earliest, batch)
        report = audit(folder, cluster=kafka, topics=[TOPIC], dead_letters=LETTERS, replay=replay)
    expected: dict[str, list[int]] = defaultdict(list)
    for offset, fate in enumerate(fates):
        for kind in kinds(fate, offset=offset, earliest=earliest, topology=topology):
            expected[kind].append(offset)
    (part,) = report.partitions
    listed = {kind: [o for span in ranges for o in range(*span)] for kind, ranges in part.offsets.items()}
    assert listed == dict(expected)
    assert part.present == sum(fate.rows + fate.stray > 0 for fate in fates)
    assert part.rows == sum(fate.rows + fate.stray for fate in fates)
    problems = {EXIT_CODES[kind] for kind in expected if kind not in EXPLAINED}
    if any(fate.stray for fate in fates):
        problems.add(EXIT_CODES["extra"])
    assert report.exit_code == min(problems, default=0)

"""How seek targets and files resolve to offsets, without I/O."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.errors import ConfigError
from downspout.kafka import TopicPartition
from downspout.ledger import CommitMetadata
from downspout.offsets import Place, Standing, TargetKind, milliseconds, moment, read_places, to_csv
from downspout.offsets.seek_targets import chosen, reckon, to_json

OFFSETS = st.integers(0, 1000)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12)
STAMPS = st.lists(st.integers(0, 50), min_size=0, max_size=20).map(sorted)


@given(begin=OFFSETS, stamps=STAMPS, current=st.none() | OFFSETS, at=st.integers(0, 60))
def test_a_time_is_the_first_record_that_is_not_older(
    begin: int, stamps: list[int], current: int | None, at: int
) -> None:
    end = begin + len(stamps)
    at_time = next((begin + index for index, stamp in enumerate(stamps) if stamp >= at), None)
    found = reckon(Place(TargetKind.TIME, at), begin=begin, end=end, current=current, at_time=at_time)
    assert found is not None
    assert begin <= found <= end
    assert all(stamp < at for stamp in stamps[: found - begin])
    assert all(stamp >= at for stamp in stamps[found - begin :][:1])


@given(begin=OFFSETS, length=OFFSETS, current=OFFSETS, one=st.integers(-500, 500), two=st.integers(-500, 500))
def test_shifts_add_up(begin: int, length: int, current: int, one: int, two: int) -> None:
    """Two shifts one after the other are the shift by their sum, and a shift back undoes one."""

    def shifted(start: int, by: int) -> int:
        found = reckon(Place(TargetKind.SHIFT, by), begin=begin, end=begin + length, current=start, at_time=None)
        assert found is not None
        return found

    assert shifted(shifted(current, one), two) == shifted(current, one + two)
    assert shifted(shifted(current, one), -one) == current


@given(begin=OFFSETS, length=OFFSETS, current=st.none() | OFFSETS, value=OFFSETS)
def test_the_kinds_go_by_what_they_say(begin: int, length: int, current: int | None, value: int) -> None:
    """The ends are the log's, an offset is itself, current is the commit, and only a shift needs one."""
    log = {"begin": begin, "end": begin + length, "current": current, "at_time": None}
    found = {kind: reckon(Place(kind, value), **log) for kind in TargetKind}
    assert (found[TargetKind.EARLIEST], found[TargetKind.LATEST], found[TargetKind.OFFSET]) == (
        begin,
        begin + length,
        value,
    )
    assert found[TargetKind.CURRENT] == (begin + length if current is None else current)
    assert found[TargetKind.SHIFT] == (None if current is None else current + value)


@given(st.integers(0, 400), st.integers(0, 50), st.integers(0, 90), st.integers(0, 90_000))
def test_a_duration_is_the_sum_of_its_parts(days: int, hours: int, minutes: int, ms: int) -> None:
    """ISO 8601 and people's units mean the same, to the millisecond."""
    wanted = timedelta(days=days, hours=hours, minutes=minutes, milliseconds=ms) // timedelta(milliseconds=1)
    assert milliseconds(f"P{days}DT{hours}H{minutes}M{ms / 1000:.3f}S") == wanted
    assert milliseconds(f"{wanted}ms") == wanted


@given(st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1)), st.integers(-14 * 60, 14 * 60))
def test_a_time_is_the_same_in_each_zone(at: datetime, minutes: int) -> None:
    there = at.replace(tzinfo=UTC).astimezone(timezone(timedelta(minutes=minutes)))
    assert moment(there.isoformat()) == moment(at.isoformat() + "Z")


@pytest.mark.parametrize("text", ["", "P", "PT", "5", "1 week", "P1W", "-90s", "PT1M30", "1e3s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """The error names the text and shows how durations are written."""
    with pytest.raises(ConfigError, match=r"is not a duration.*90s.*PT1M"):
        milliseconds(text)


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01T00:00:00Z", "2026-11-24T10:00:00", "2026-11-24"])
def test_a_time_without_a_zone_is_refused(text: str) -> None:
    """What Kafka's tool would take for UTC may be meant otherwise."""
    with pytest.raises(ConfigError, match=r"is not a time|its time zone"):
        moment(text)


def test_a_time_before_all_times_of_kafka_is_its_first() -> None:
    """-1 and -2 mean the end and the beginning to Kafka: the last moments of 1969 must not become these."""
    assert moment("1969-12-31T23:59:59.999Z") == moment("1969-12-31T23:59:59.998Z") == 0


@pytest.mark.parametrize("text", ["", "a:", "a:x", "a:1,,2", "a b", ":1", "a:-1"])
def test_what_names_no_partitions_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="orders:0,2"):
        chosen([text])


STANDINGS = st.lists(
    st.builds(
        lambda number, offset, gaps: Standing(
            TopicPartition("orders", number), offset, CommitMetadata(done=_ranges(offset, gaps)), False, 0, 9, 9, "id"
        ),
        st.integers(0, 50),
        OFFSETS,
        st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=4),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda standing: standing.tp,
)


def _ranges(offset: int, gaps: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found, end = [], offset
    for gap, length in gaps:
        found.append((end + gap, end + gap + length))
        end += gap + length
    return tuple(found)


@given(groups=st.dictionaries(NAMES, STANDINGS, min_size=1, max_size=3))
def test_files_hold_what_was_exported(
    tmp_path_factory: pytest.TempPathFactory, groups: dict[str, list[Standing]]
) -> None:
    """CSV gives back the offsets, whatever the groups are called; JSON also the topic's id and what is done beyond."""
    path = tmp_path_factory.mktemp("files") / "offsets"
    path.write_text(to_csv(groups), encoding="utf-8")
    found = read_places(path, list(groups))
    assert found == {
        group: {s.tp: Place(TargetKind.OFFSET, s.offset or 0) for s in standings} for group, standings in groups.items()
    }
    path.write_text(json.dumps(to_json(groups)), encoding="utf-8")
    assert read_places(path, list(groups)) == {
        group: {s.tp: Place(TargetKind.OFFSET, s.offset or 0, s.metadata.done, "id") for s in standings}
        for group, standings in groups.items()
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("orders,0", r"offsets:1: 'orders,0' is not an offset"),
        ("orders,0,5\ng,orders,0,5", "offsets:2"),
        ("orders,0,-1", "offsets:1"),
        ("orders,x,5", "offsets:1"),
        ("orders,0,99999999999999999999", "offsets:1"),
        ("orders,0," + "9" * 5000, "offsets:1"),
        ("orders,0,1\norders,1," + "9" * 200_000, "offsets:2"),
        ("orders,0,1\norders,0,1", r"offsets:2 names orders\[0\] again"),
        ("h,orders,0,1", "no offsets for g"),
        ("", "no offsets for g"),
        ('{"format":"other","offsets":[]}', "is not of the form"),
        ('{"format":"downspout-offsets-1"}', "is not of the form"),
        ("{", "is not of the form"),
        ('{"format":"downspout-offsets-1","offsets":[{"group":"g","topic":"t"}]}', "offsets:1"),
        (
            '{"format":"downspout-offsets-1","offsets":[{"group":"g","topic":"t","topic_id":"","partition":0,'
            '"offset":5,"done":[[4,6]]}]}',
            "offsets:1",
        ),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "offsets"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        read_places(path, ["g"])


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "offsets"
    for content in (None, b"\xff\xfe"):
        if content:
            path.write_bytes(content)
        with pytest.raises(ConfigError, match="offsets cannot be read"):
            read_places(path, ["g"])


def test_lines_without_a_group_need_one_group(tmp_path: Path) -> None:
    """With two groups a line of three columns could be of either."""
    path = tmp_path / "offsets"
    path.write_text("orders,0,5\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="does not name its group"):
        read_places(path, ["g", "h"])


def test_blank_lines_count(tmp_path: Path) -> None:
    """An error names the line that an editor shows."""
    path = tmp_path / "offsets"
    for text, groups, said in (
        ("\n\norders,0,5\n\norders,0,6\n", ["g"], r"offsets:5 names orders\[0\] again"),
        ("\n\norders,0,5\n", ["g", "h"], "offsets:3 does not name its group"),
        ("\n\norders,0,5\n\norders,x,6\n", ["g"], "offsets:5: 'orders,x,6' is not an offset"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=said):
            read_places(path, groups)

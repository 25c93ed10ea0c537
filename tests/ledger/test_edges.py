"""Edge cases that `make mutants` found untested: off by one, the first of two, empty."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.ledger import (
    NEVER,
    NOTHING,
    AssignmentEpochs,
    Backoff,
    Fact,
    Origin,
    PartitionLedger,
    Ranges,
    RetryState,
    decode,
    encode,
    metadata,
)


def out(count: int, **given: object) -> PartitionLedger:
    ledger = PartitionLedger(0, **given)
    for offset in range(count):
        assert ledger.emit(offset, now=0)
    return ledger


def fact(kind: str, partitions: str) -> Fact[str]:
    return Fact(kind, frozenset(partitions))


# --- assignment ---


def test_an_assignment_says_plainly_whether_it_is_settled() -> None:
    """Before the first assignment the answer is False, and after an empty one True."""
    mine: AssignmentEpochs[str] = AssignmentEpochs()
    assert mine.arrived is False
    mine.apply([fact("assigned", "")])
    assert mine.arrived is True


def test_two_assignments_in_one_fold_start_one_epoch() -> None:
    """Epochs are counted by calls that gain, not by callbacks."""
    mine: AssignmentEpochs[str] = AssignmentEpochs()
    mine.apply([fact("assigned", "a"), fact("assigned", "b")])
    assert (mine.epoch("a"), mine.epoch("b"), mine.last_epoch) == (1, 1, 1)


def test_what_is_owned_already_does_not_hide_what_is_new() -> None:
    """A full set in any order gains all that is new in it."""
    for owned in "abcdef":
        mine: AssignmentEpochs[str] = AssignmentEpochs()
        mine.apply([fact("assigned", owned)])
        assert mine.apply([fact("assigned", "abcdef")]).gained == set("abcdef") - {owned}


def test_gained_lost_and_gained_again_is_gained() -> None:
    """Within one call, only the last of it counts, and nothing that was lost returns."""
    mine: AssignmentEpochs[str] = AssignmentEpochs()
    changes = mine.apply([fact("assigned", "a"), fact("lost", "a"), fact("assigned", "a")])
    assert (changes.gained, changes.returned) == ({"a"}, set())
    changes = mine.apply([fact("revoked", "a"), fact("assigned", "a"), fact("lost", "a"), fact("assigned", "a")])
    assert (changes.gained, changes.returned) == ({"a"}, set())


def test_returned_lost_and_gained_is_not_also_returned() -> None:
    """A partition is never in two of the sets: it would be started and taken back at once."""
    mine: AssignmentEpochs[str] = AssignmentEpochs()
    mine.apply([fact("assigned", "a")])
    changes = mine.apply([fact("revoked", "a"), fact("assigned", "a"), fact("revoked", "a"), fact("assigned", "")])
    assert (changes.gained, changes.returned, changes.forgotten) == (set(), set(), {"a"})
    mine.apply([fact("assigned", "a")])
    gone = [
        fact("revoked", "a"),
        fact("assigned", "a"),
        fact("revoked", "a"),
        fact("assigned", ""),
        fact("assigned", "a"),
    ]
    changes = mine.apply(gone)
    assert (changes.gained, changes.returned, changes.forgotten) == ({"a"}, set(), set())


def test_gained_given_away_and_returned_is_sorted_out() -> None:
    """What was gained and went to somebody else within one call is neither gained nor returned nor forgotten."""
    mine: AssignmentEpochs[str] = AssignmentEpochs()
    changes = mine.apply([fact("assigned", "a"), fact("revoked", "a"), fact("assigned", "")])
    assert (changes.gained, changes.returned, changes.forgotten) == (set(), set(), set())


# --- metadata ---


def test_text_that_just_fits_is_written() -> None:
    """At exactly the frame's length there is a frame, and one below it nothing."""
    frame = encode(7, topology_id="a", task=1)
    assert encode(7, topology_id="a", task=1, bytes_max=len(frame)) == frame
    assert encode(7, topology_id="a", task=1, bytes_max=len(frame) - 1) == ""


@pytest.mark.parametrize("more", range(0, 200, 7))
def test_room_is_used_up_and_never_exceeded(more: int) -> None:
    """With room for n characters more than the frame, a third more ranges than are told would not fit."""
    frame = len(encode(0, topology_id="a", task=1))
    done = [(n * n + 1, n * n + 2) for n in range(1, 300)]
    text = encode(0, topology_id="a", task=1, done=done, bytes_max=frame + more)
    told = decode(0, text).done
    assert len(text) <= frame + more
    assert told == tuple(done[: len(told)])
    assert len(encode(0, topology_id="a", task=1, done=done[: 4 * len(told) // 3 + 8])) > frame + more


@pytest.mark.parametrize("more", range(0, 200, 7))
def test_failures_take_a_quarter_of_the_room(more: int) -> None:
    """Attempts come first, but never in more than a fourth of what the frame leaves, if not all fits."""
    frame = len(encode(0, topology_id="a", task=1))
    failures = [(n * n, n) for n in range(1, 100)]
    text = encode(0, topology_id="a", task=1, failures=failures, bytes_max=frame + more)
    told = decode(0, text).failures
    assert list(told.items()) == failures[: len(told)]
    assert len(text) <= frame + more // 4


def test_nothing_is_nothing_and_not_an_error_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty metadata is read as null, not as text that cannot be read."""
    read = metadata.json.loads
    seen: list[object] = []
    monkeypatch.setattr(metadata.json, "loads", lambda text: seen.append(read(text)))
    assert decode(5, "") == decode(5, None) == NOTHING
    assert seen == [None, None]


def test_names_with_lone_surrogates_are_encoded() -> None:
    """A topology id that is no valid Unicode is unusual, and no reason to fail a commit."""
    text = encode(5, topology_id="a\ud800b", task=1, done=[(7, 9)])
    assert decode(5, text).done == ((7, 9),)


@pytest.mark.parametrize(("thread", "owner"), [("Thread-14", "o"), ("downspouT2 x", ""), ("down under", "o")])
def test_what_is_like_our_mark_is_ours_and_damaged(thread: str, owner: str) -> None:
    """Then the owner may be damaged as well. Anything else names its owner."""
    assert decode(5, json.dumps({"topologyId": "o", "taskId": 1, "threadName": thread})).topology_id == owner


# --- the ledger ---


def test_failures_at_the_commit_itself_are_remembered() -> None:
    """The record that holds the commit back is the one whose attempts matter most."""
    ledger = PartitionLedger(5, failures={5: 2, 4: 1, 6: 0})
    assert dict(ledger.failures_from(5)) == {5: 2}
    assert dict(ledger.failures_from(6)) == {}
    assert ledger.emit(5, now=0)
    assert dict(ledger.failures_from(5)) == {5: 2}
    assert dict(ledger.failures_from(6)) == {}


def test_a_record_recalled_goes_on_backing_off() -> None:
    """Its fails and timeouts are those of the earlier owner: the back-off does not begin again."""
    ledger = PartitionLedger(0, Backoff(10, 10_000), failures={0: 5, 1: 1})
    assert ledger.emit(0, now=7)
    assert ledger.emit(1, now=7)
    assert (ledger.in_flight, ledger.pending) == (2, 2)
    assert ledger.retry_state(0) == RetryState(failures=5, backoffs=5, ready_at=7, emitted_at=7, end=1)
    trouble = ledger.fail(0, now=0)
    assert trouble is not None
    assert trouble.ready_at == 10 << 5
    ledger.check()


def test_a_timeout_counts_only_with_acks_since_the_last_emit() -> None:
    """Acks before the emit are none of its business, however many there were."""
    ledger = out(5, backoff=Backoff(2), failures={9: 1})
    for offset in (0, 1, 2):
        ledger.ack(offset)
    assert ledger.emit(9, now=0)
    trouble = ledger.timeout(9, now=0)
    assert trouble is not None
    assert trouble.timeouts == 0
    assert ledger.emit(9, now=10)
    ledger.ack(3)
    trouble = ledger.timeout(9, now=20)
    assert trouble is not None
    assert (trouble.timeouts, trouble.failures) == (1, 1)
    assert ledger.emit(9, now=100)
    ledger.ack(4)
    trouble = ledger.timeout(9, now=200)
    assert trouble is not None
    assert (trouble.timeouts, trouble.failures, trouble.backoffs) == (2, 1, 4)
    assert ledger.earliest_ready_retry(now=200) is None
    assert ledger.earliest_ready_retry(now=10_000) == 9


def test_several_retries_are_out_at_once() -> None:
    ledger = out(3)
    for offset in range(3):
        ledger.fail(offset, now=0)
    for offset in range(3):
        assert ledger.emit(offset, now=0)
    assert (ledger.in_flight, ledger.failed) == (3, 0)
    ledger.check()
    ledger.ack(1)
    assert (ledger.in_flight, ledger.failed) == (2, 0)
    ledger.check()
    ledger.ack(0)
    ledger.ack(2)
    assert (ledger.in_flight, ledger.failed) == (0, 0)


def test_what_was_never_seen_is_resolved_where_it_is() -> None:
    """A filtered record is the end of what was seen; seen again it is done; its history is over."""
    ledger = PartitionLedger(0, failures={3: 2, 5: 1})
    assert ledger.resolve(3) is True
    assert (ledger.next, ledger.commit_point(), ledger.resolve(3)) == (4, 4, False)
    assert dict(ledger.failures_from(0)) == {5: 1}
    ledger.check()


def test_what_an_earlier_owner_did_is_not_resolved_again() -> None:
    """A filtered record that the metadata told as done counts once."""
    assert PartitionLedger(0, done=[(3, 4)]).resolve(3) is False


def test_gone_leaves_alone_what_lies_below_and_above() -> None:
    ledger = out(5)
    for offset in range(5):
        ledger.fail(offset, now=0)
    assert ledger.gone(1, 3) == 2
    assert [ledger.is_done(offset) for offset in range(5)] == [False, True, True, False, False]
    assert [ledger.retry_state(offset) is None for offset in range(5)] == [False, True, True, False, False]


def test_done_is_what_is_below_the_base_or_was_resolved() -> None:
    ledger = out(2)
    assert [ledger.is_done(offset) for offset in (-1, 0, 1, 2)] == [True, False, False, False]
    ledger.ack(1)
    assert [ledger.is_done(offset) for offset in (-1, 0, 1, 2)] == [True, False, True, False]


def test_when_it_was_emitted_is_told_of_each() -> None:
    """Of what flies, what is retried, what waits and what is not known."""
    ledger = PartitionLedger(0)
    for offset in (0, 1, 2):
        ledger.emit(offset, now=10 + offset)
    ledger.fail(1, now=20)
    ledger.fail(2, now=20)
    ledger.emit(2, now=30)
    assert [ledger.emitted_at(offset) for offset in range(4)] == [10, None, 30, None]


def test_the_limit_counts_past_several_gaps() -> None:
    """A retry may be sought up to the n-th record that was emitted, gaps between them not counted."""
    ledger = PartitionLedger(100)
    for offset in (100, 105, 110, 115):
        ledger.emit(offset, now=0)
    for last, allowed in ((110, True), (115, False)):
        ledger.fail(last, now=0)
        assert ledger.may_poll(3, now=0) is allowed
        ledger.postpone(last, NEVER)
    assert [ledger._nth(n) for n in (1, 2, 3, 4)] == [100, 105, 110, 115]


def test_skipping_counts_what_waits_below_the_base_of_nothing() -> None:
    """Lost are those that wait and those never seen; not those that were done or are out."""
    ledger = PartitionLedger(0, done=[(6, 8)])
    for offset in range(3):
        ledger.emit(offset, now=0)
    ledger.ack(0)
    ledger.fail(1, now=0)
    assert ledger.skip_to(10) == 1 + (10 - 3 - 2)
    assert ledger.skip_to(10) == 0
    assert (ledger.next, ledger.commit_point()) == (10, 2)


# --- ranges ---


def test_ranges_compare_with_ranges_only() -> None:
    """A list with the same pairs is not a set of offsets."""
    assert Ranges([(1, 3)]) != [(1, 3)]
    assert (Ranges() == 5) is False


def test_what_lies_inside_a_range_changes_nothing() -> None:
    ranges = Ranges([(1, 5), (7, 9)])
    for inside in ((1, 5), (2, 5), (1, 2), (3, 4)):
        ranges.add_range(*inside)
    assert list(ranges) == [(1, 5), (7, 9)]
    assert ranges.total == 6


def test_a_range_that_touches_the_next_joins_it() -> None:
    """Also where only the ends meet, on either side."""
    ranges = Ranges([(3, 5), (9, 11)])
    ranges.add_range(1, 3)
    ranges.add_range(5, 7)
    ranges.check()
    assert list(ranges) == [(1, 7), (9, 11)]


def test_the_history_of_the_very_next_offset_is_in_form() -> None:
    PartitionLedger(5, failures={5: 1}).check()


def damage(what: str) -> Callable[[PartitionLedger], None]:
    """Return a statement about a ledger as something to do."""

    def do(ledger: PartitionLedger) -> None:
        exec(what, {"ledger": ledger, "RetryState": RetryState})

    return do


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("ledger._flying[0] = 0", "an offset is in two states"),
        ("del ledger._flying[1]", "an offset between base and next has no state"),
        ("ledger.next += 1", "an offset between base and next has no state"),
        ("ledger._absent.add(1)", "absent, but not done"),
        ("ledger._retries.out += 1", "2 retries are out, but the count says"),
        ("ledger._retries._schedule.clear()", "a retry waits, but for no time"),
        ("ledger.earlier_failures[1] = 1", "history of an offset that was seen"),
        ("ledger._done._starts[0] = 0", r"\[0, 0\) is empty"),
        ("ledger._done._starts[3] = 2", r"\[3, 2\) is empty"),
        ("ledger._done._ends[1] = 9", r"\[0, 1\) is not in the index by end"),
        ("ledger._done._ends[77] = 76", "the two indexes differ in size"),
        ("ledger._done.total += 1", "2 integers, but total says 3|1 integers, but total says 2"),
        ("ledger._done._insert(1, 2)", r"\[1, 2\) touches or overlaps"),
        ("ledger._absent._starts[4] = 4", r"\[4, 4\) is empty"),
    ],
)
def test_a_damaged_ledger_is_found_out(what: str, says: str) -> None:
    """The checks that the models rely on see each kind of damage."""
    ledger = out(5)
    ledger.ack(0)
    for offset in (2, 3, 4):
        ledger.fail(offset, now=0)
    for offset in (2, 3):
        ledger.emit(offset, now=0)
    ledger.check()
    damage(what)(ledger)
    with pytest.raises(AssertionError, match=f"^(?:{says})"):
        ledger.check()


# --- origins ---


def test_a_child_has_a_path_of_its_own() -> None:
    """The step names component, stream and index; the default stream goes without saying; steps are appended."""
    line = Origin("lines", "T", 0, 17)
    assert line.path == ""
    assert line.child("split", 2) == Origin("lines", "T", 0, 17, "split.2")
    assert line.child("split", 2, "vowels").path == "split:vowels.2"
    assert line.child("split", 2).child("letters", 0).path == "split.2/letters.0"


def test_an_origin_is_read_from_a_list() -> None:
    """What came over Storm's pipe is an origin again, with numbers as numbers; an origin stays the very same."""
    line = Origin("lines", "T", 3, 17, "p")
    assert Origin.of(line) is line
    assert Origin.of(["lines", "T", "3", "17", "p"]) == line
    assert type(Origin.of(list(line))) is Origin


@pytest.mark.parametrize("foreign", [[], ["a", "b", "x", 1, ""], ["a", "b", 1, 2], 7, ["a", "b", 1, None, ""]])
def test_what_is_no_origin_is_refused(foreign: object) -> None:
    """The error shows it and names the parts that it should have."""
    with pytest.raises(ValueError, match=r"is not an origin \(topic, topic_id, partition, offset, path\)$") as caught:
        Origin.of(foreign)
    assert str(caught.value).startswith(repr(foreign))


def test_a_record_recalled_without_an_emit_waits_like_a_retry() -> None:
    """It is troubled with its earlier failures, due at once, and what was not there before it is passed over."""
    ledger = PartitionLedger(0, Backoff(10, 10_000), failures={2: 5, 3: 1})
    ledger.recall(2, now=7)
    ledger.check()
    assert (ledger.next, ledger.commit_point(), ledger.in_flight, ledger.failed) == (3, 2, 0, 1)
    assert ledger.retry_state(2) == RetryState(failures=5, backoffs=5, ready_at=7, end=3)
    assert (ledger.earliest_ready_retry(6), ledger.earliest_ready_retry(7)) == (None, 2)
    assert (dict(ledger.earlier_failures), ledger.resolve(2), ledger.commit_point()) == ({3: 1}, True, 3)


# --- what is outstanding, and parts of ranges ---


@given(st.sets(st.integers(0, 30)), st.integers(0, 40))
def test_what_would_be_outstanding_are_the_records_from_there_on(offsets: set[int], point: int) -> None:
    """Those that were emitted at the offset of the commit or beyond it, whatever is missing between them."""
    ledger = PartitionLedger(0)
    for offset in sorted(offsets):
        ledger.emit(offset, now=0)
    assert ledger.outstanding_from(point) == sum(offset >= point for offset in offsets)


@given(st.integers(2, 20))
def test_a_range_that_is_split_goes_out_in_halves(records: int) -> None:
    ledger = PartitionLedger(0)
    ledger.emit_range(0, records, records=records, now=0)
    ledger.timeout(0, now=0)
    ledger.split(0)
    retry = ledger.retry_state(0)
    assert retry is not None
    assert retry.most == -(-records // 2)


def test_a_part_of_a_range_has_its_past_and_a_single_record_has_none() -> None:
    """Timeouts and back-off go on with the part; a record that stands alone is not to blame for the range."""
    retry = RetryState(3, 2, 5, ready_at=7, emitted_at=1, acks_seen=4, end=10, records=10, most=5)
    assert retry.part(4, 10, 6) == RetryState(0, 2, 5, ready_at=7, end=10, records=6, most=5)
    assert retry.part(7, 10, 3) == RetryState(0, 2, 5, ready_at=7, end=10, records=3, most=3)
    assert retry.part(9, 10, 1) == RetryState(ready_at=7, end=10)

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pystorm.component import Tuple

from bolts.state import StateBolt
from downspout.batches import BATCH, COMMIT, SUCCESS, Attempt, BatchStoreError, Commit, Key
from downspout.errors import ConfigError, RecordError, TopologyError
from tests.batches.stage import Stage, Word


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state.db"


def longest(value: str | None, tup: Any) -> str:
    return max(value or "", str(tup.word), key=len)


class Letters:
    """Which letters there are: a combiner of a user's."""

    def init(self, values: Any) -> list[str]:
        return sorted(set(values.word))

    def combine(self, one: list[str], other: list[str]) -> list[str]:
        return sorted({*one, *other})


def appended(value: list[str] | None, tup: Any) -> list[str]:
    value = [] if value is None else value
    value.append(tup.word)
    return value


def summed(value: int | None, tup: Any) -> Any:
    return (value or 0) + tup.size


class FirstSeen(StateBolt):
    """Puts and gets: which transaction a word came with first."""

    def apply(self, state: Commit[Key], batch: Mapping[Key, Any]) -> Iterable[list[Any]]:
        """Put what is not there; count all in a key of no tuple."""
        for key in batch:
            if state.get(key) is None:
                state.put(key, "new")
                yield [*key, "new"]
        state.update(("*",), lambda value: (value or 0) + len(batch))


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("opaque", {"a": [1, 2, None], "b": [1, 1, None]}, {"a": [2, 3, 2], "b": [1, 1, None]}),
        ("transactional", {"a": [1, 2], "b": [1, 1]}, {"a": [2, 3], "b": [1, 1]}),
        ("non_transactional", {"a": 2, "b": 1}, {"a": 3, "b": 1}),
    ],
)
def test_each_kind_stores_its_form(url: str, kind: str, first: dict[str, Any], second: dict[str, Any]) -> None:
    """Values are stored in the JSON forms of Trident, and each key that a batch has changed is emitted."""
    stage = Stage(url, state__kind=kind)
    assert stage.batch(Attempt(1, 0), "a", "b", "a")
    assert stage.stored() == first
    stage.succeed(Attempt(1, 0))
    assert stage.batch(Attempt(2, 0), "a")
    assert stage.stored() == second
    assert stage.emitted == [[Attempt(1, 0), "a", 2], [Attempt(1, 0), "b", 1], [Attempt(2, 0), "a", 3]]


def test_what_is_emitted_hangs_on_the_commit(url: str) -> None:
    """So a transaction is done only when those who take the new values are done with them."""
    stage = Stage(url)
    stage.begin(Attempt(1, 0))
    stage.words(Attempt(1, 0), "a", "b")
    assert stage.emitted == []
    commit = stage.send(COMMIT, (Attempt(1, 0), 1))
    assert stage.anchors == [[commit], [commit]]


def test_attempts_may_be_plain_lists(url: str) -> None:
    """Over Storm's pipe an attempt becomes a list, and a key's tuple too; all is as before."""
    stage = Stage(url)
    stage.begin([1, 0])  # as JSON has it
    stage.words([1, 0], "a", "b", "a")
    assert stage.commit([1, 0])
    stage.succeed([1, 0])
    assert stage.stored() == {"a": [1, 2, None], "b": [1, 1, None]}


def test_nothing_is_stored_before_the_commit(url: str) -> None:
    """Tuples are acked when they are held, and the state changes at the commit."""
    stage = Stage(url)
    begin = stage.begin(Attempt(1, 0))
    tuples = stage.words(Attempt(1, 0), "a", "a")
    assert (stage.acked, stage.stored()) == ([begin, *tuples], {})
    assert stage.commit(Attempt(1, 0))
    assert stage.stored() == {"a": [1, 2, None]}


def test_tuples_before_the_beginning_are_not_acked(url: str) -> None:
    """What comes before a task has seen the beginning is held and not acked until then."""
    stage = Stage(url)
    early = stage.words(Attempt(1, 0), "a")
    assert stage.acked == []
    begin = stage.begin(Attempt(1, 0))
    late = stage.words(Attempt(1, 0), "a")
    assert sorted(stage.acked) == sorted([*early, begin, *late])
    assert stage.commit(Attempt(1, 0))
    assert stage.stored() == {"a": [1, 2, None]}


def test_a_restarted_task_fails_the_commit(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A task that has lost what it held says so; the next attempt brings all again, and nothing counts twice."""
    stage = Stage(url)
    stage.begin(Attempt(1, 0))
    stage.words(Attempt(1, 0), "a")
    stage.bolt.close()
    again = Stage(url)
    assert not again.commit(Attempt(1, 0))
    assert "counts: transaction 1, attempt 0: its beginning was not seen by this process" in caplog.text
    assert again.batch(Attempt(1, 1), "a")
    assert again.stored() == {"a": [1, 1, None]}


def test_an_older_attempt_is_acked_and_dropped(url: str) -> None:
    """Tuples of an attempt that was replaced change nothing, and its commit fails."""
    stage = Stage(url)
    stage.begin(Attempt(1, 0))
    stage.words(Attempt(1, 0), "a")
    stage.begin(Attempt(1, 1))
    late = stage.words(Attempt(1, 0), "a", "b")
    assert stage.acked[-2:] == late
    assert not stage.commit(Attempt(1, 0))
    stage.words(Attempt(1, 1), "b")
    assert stage.commit(Attempt(1, 1))
    assert stage.stored() == {"b": [1, 1, None]}


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_batch_that_was_applied_and_comes_again_counts_once(url: str, kind: str) -> None:
    """The commit was applied, its answer was lost, and the same records come in the next attempt."""
    stage = Stage(url, state__kind=kind)
    stage.batch(Attempt(1, 0), "a", "b")
    stage.batch(Attempt(1, 1), "a", "b")
    assert {word: value[1] for word, value in stage.stored().items()} == {"a": 1, "b": 1}
    assert stage.emitted[2:] == [[Attempt(1, 1), "a", 1], [Attempt(1, 1), "b", 1]]


def test_a_key_that_the_next_attempt_lacks_goes_back(url: str) -> None:
    """An opaque batch that comes again without a record leaves no trace of it, and the record counts once later."""
    stage = Stage(url)
    stage.batch(Attempt(1, 0), "a", "b")
    stage.succeed(Attempt(1, 0))
    stage.batch(Attempt(2, 0), "a", "b", "c")  # applied, but another task failed
    stage.batch(Attempt(2, 1), "b")  # a partition was away
    assert stage.stored() == {"a": [2, 1, 1], "b": [2, 2, 1], "c": [2, None, None]}
    stage.succeed(Attempt(2, 1))
    stage.batch(Attempt(3, 0), "a", "c")
    assert {word: value[1] for word, value in stage.stored().items()} == {"a": 2, "b": 2, "c": 1}


def test_an_empty_attempt_puts_back_what_an_earlier_one_changed(url: str) -> None:
    stage = Stage(url)
    stage.batch(Attempt(1, 0), "a")
    stage.batch(Attempt(1, 1))
    assert stage.stored() == {"a": [1, None, None]}


def test_a_frozen_task_stores_nothing_late(url: str) -> None:
    """A task that wakes up after another process has committed a later attempt is refused, and says why."""
    frozen, other = Stage(url), Stage(url)
    frozen.begin(Attempt(1, 0))
    frozen.words(Attempt(1, 0), "a")
    other.batch(Attempt(1, 1), "b")
    assert not frozen.commit(Attempt(1, 0))
    assert "comes too late" in next(iter(frozen.failed.values()))
    assert other.stored() == {"b": [1, 1, None]}


@pytest.mark.parametrize(
    ("update", "name", "wanted"),
    [
        ("sum:size", "sum_size", 5),
        ("min:size", "min_size", 2),
        ("max:size", "max_size", 3),
        ("last:word", "last_word", "abc"),
        ("tests.batches.test_state_bolt.longest", "value", "abc"),
        ("tests.batches.test_state_bolt.Letters", "value", ["a", "b", "c"]),
    ],
)
def test_updates_by_name_and_of_the_users(url: str, update: str, name: str, wanted: Any) -> None:
    """Sums, minima, maxima, the last value, a reducer and a combiner: over batches and within them."""
    stage = Stage(url, state__update=update, state__key=["group"])
    spec = StateBolt.spec(store=url, key=["word"], update=update)
    assert spec.outputs["default"].output_fields == ["attempt", "word", name]
    stage.batch(Attempt(1, 0), "ab")
    stage.batch(Attempt(2, 0), "abc")
    assert stage.bolt.state.read_all() == {("all",): [2, wanted, "ab" if wanted == "abc" else stage.emitted[0][-1]]}


def test_nulls_are_left_out_of_sums(url: str) -> None:
    stage = Stage(url, state__update="sum:size")
    stage.begin(Attempt(1, 0))
    for values in ((Attempt(1, 0), "a", None), (Attempt(1, 0), "b", 2), (Attempt(1, 0), "b", None)):
        stage.send("default", Word(*values))
    stage.commit(Attempt(1, 0))
    assert stage.stored() == {"a": [1, None, None], "b": [1, 2, None]}


def test_a_subclass_gets_and_puts_any_keys(url: str) -> None:
    """A user's own ``apply`` sees the state as of the batch, changes keys that no tuple had, and is repeatable."""
    stage = Stage(url, FirstSeen)
    stage.batch(Attempt(1, 0), "a")
    stage.batch(Attempt(2, 0), "a", "b")
    stage.batch(Attempt(2, 1), "a", "b")
    assert stage.stored() == {"a": [1, "new", None], "b": [2, "new", None], "*": [2, 3, 1]}
    assert stage.emitted == [[Attempt(1, 0), "a", "new"], [Attempt(2, 0), "b", "new"], [Attempt(2, 1), "b", "new"]]


def test_what_cannot_be_stored_fails_the_batch_by_name(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A foreign value and a locked file fail the commit, with state and key, and none of the batch is stored."""
    monkeypatch.setattr("downspout.outages.SOON_S", 0.0)
    monkeypatch.setattr(StateBolt, "lock_wait_s", 0.05)
    stage = Stage(url)
    stage.batch(Attempt(1, 0), "a", "b")
    with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert not stage.batch(Attempt(2, 0), "a")
        other.execute("ROLLBACK")
        other.execute("UPDATE downspout_state SET value = '\"x\"' WHERE key = '[\"b\"]'")
    assert not stage.batch(Attempt(2, 1), "a", "b")
    assert stage.stored() == {"a": [1, 1, None], "b": "x"}
    locked, foreign = stage.failed.values()
    assert locked == ""  # it may pass, so it is no error of the bolt
    told, over = caplog.messages[:2]
    assert f"{url} has been locked since" in told
    assert told.endswith("; state counts waits for it and goes on when it can be used again")
    assert over == f"{url} can be used again, after 0 s"
    assert "key ('b',): 'x' is not the stored form of a value of kind opaque" in foreign


def test_batches_of_another_topology_are_refused_at_the_start(url: str) -> None:
    """A state belongs to one series of batches; ``batch.id`` names it, and else the topology."""
    Stage(url)
    with pytest.raises(BatchStoreError, match="belongs to the batches of t, but these are of other"):
        Stage(url, batch__id="other")
    Stage(url, state__name="mine", batch__id="other")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"store": None}, "state.store is not set"),
        ({"key": None}, "state.key is not set"),
        ({"update": None}, "state.update is not set"),
        ({"update": "median:size"}, "is not an update"),
        ({"update": "tests.batches.nowhere"}, "cannot be imported"),
        ({"update": lambda value, tup: value}, "cannot be imported by other processes"),
        ({"store": "redis://host/0"}, "is not a store for this"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, Any], said: str) -> None:
    settings = {"store": "sqlite:///x.db", "key": "word", "update": "count", **given}
    with pytest.raises(ConfigError, match=said):
        StateBolt.spec(**{key: value for key, value in settings.items() if value is not None})


def test_functions_and_classes_travel_by_name() -> None:
    """What is given as a function is in the configuration as its import path."""
    spec = StateBolt.spec(store="sqlite:///x.db", key="word", update=longest)
    assert json.loads(spec.config)["state.update"] == "tests.batches.test_state_bolt.longest"


def test_a_reducer_may_change_the_value_in_place(url: str) -> None:
    """The previous value stays as it was, so a batch that comes again is not in there twice."""
    stage = Stage(url, state__update="tests.batches.test_state_bolt.appended", state__key=["group"])
    stage.batch(Attempt(1, 0), "a")
    stage.succeed(Attempt(1, 0))
    stage.batch(Attempt(2, 0), "b")
    assert stage.bolt.state.read_all() == {("all",): [2, ["a", "b"], ["a"]]}
    stage.batch(Attempt(2, 1), "b")
    assert stage.bolt.state.read_all() == {("all",): [2, ["a", "b"], ["a"]]}


def test_a_tuple_after_the_commit_fails(url: str) -> None:
    """It would be in no transaction: one that another state emits at its commit, or that is not anchored."""
    stage = Stage(url)
    stage.batch(Attempt(1, 0), "a")
    late = stage.words(Attempt(1, 0), "b")
    assert late[0] not in stage.acked
    assert "transaction 1, attempt 0: a tuple of 'split' came after the commit" in stage.failed[late[0]]
    assert stage.stored() == {"a": [1, 1, None]}


def test_a_tuple_without_an_attempt_is_no_old_one(url: str) -> None:
    """Where a bolt emits a null in its place, that is an error, and the tuple is not dropped."""
    stage = Stage(url)
    stage.begin(Attempt(1, 0))
    with pytest.raises(ValueError, match="None is not an attempt"):
        stage.words(None, "a")


def test_a_state_that_hears_nothing_of_its_batches_is_refused(url: str) -> None:
    """Without the coordinator's streams it would hold all tuples, until each batch has timed out."""
    with pytest.raises(TopologyError, match=r"counts: no input has the stream \$commit.*coordinator="):
        Stage(url, control=(BATCH, SUCCESS))


@pytest.mark.parametrize("key", [b"a", date(2013, 1, 1), float("nan"), float("inf"), "\ud800"])
def test_a_key_that_is_not_json_is_named(url: str, key: Any) -> None:
    """Bytes, dates, NaN and half a surrogate pair are no keys; the error names state and key, and says what to do."""
    stage = Stage(url)
    stage.begin(Attempt(1, 0))
    stage.send("default", Word(Attempt(1, 0), key))
    assert not stage.commit(Attempt(1, 0))
    assert "state counts, key" in str(stage.failed)
    assert "is not JSON" in str(stage.failed)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"])
def test_a_value_that_is_not_json_is_named(url: str, value: Any) -> None:
    """It fails its batch, and nothing is stored that other readers take for broken JSON."""
    stage = Stage(url, state__update="last:size")
    stage.batch(Attempt(1, 0), "a")
    stage.begin(Attempt(2, 0))
    stage.send("default", Word(Attempt(2, 0), "a", value))
    assert not stage.commit(Attempt(2, 0))
    assert f'state counts, key ["a"]: [2, {value!r}, 1] is not JSON' in next(iter(stage.failed.values()))
    assert stage.stored() == {"a": [1, 1, None]}


def test_a_new_state_is_refused_in_the_midst_of_batches(url: str) -> None:
    """Where the file was deleted, or another is named, counts would begin at zero without a word."""
    with pytest.raises(ConfigError, match=r"counts is new, .* at transaction 5.*state.exactly_once=False"):
        Stage(url, state__exactly_once=True).batch(Attempt(5, 0), "a")
    assert Stage(url).stored() == {}
    assert Stage(url).batch(Attempt(5, 0), "a")
    assert Stage(url).batch(Attempt(6, 0), "a")
    assert Stage(url).stored() == {"a": [6, 2, 1]}


def test_a_state_whose_first_batches_were_empty_is_not_new(url: str) -> None:
    """A run that began before there was a record may be restarted before the state has a key."""
    assert Stage(url).batch(Attempt(1, 0))
    assert Stage(url).batch(Attempt(5, 0), "a")


@pytest.mark.parametrize(
    ("given", "said"), [({"state__key": ["group"]}, "count by group"), ({"state__update": "sum:size"}, "sum:size by")]
)
def test_another_key_or_update_is_refused(url: str, given: dict[str, Any], said: str) -> None:
    """The values of two settings would be mixed in one state."""
    Stage(url)
    with pytest.raises(ConfigError, match=f"counts holds count by word, but is now to hold {said}"):
        Stage(url, **given)


@pytest.mark.parametrize("many", [True, False])
@pytest.mark.parametrize(
    ("given", "bad", "said"),
    [
        ({}, Word(Attempt(1, 0), {"a": 1}), "TypeError: unhashable type: 'dict', on {.*'word': {'a': 1}"),  # type: ignore[arg-type]
        ({"state__update": "sum:size"}, Word(Attempt(1, 0), "b", "7"), "size = '7' is not a number"),  # type: ignore[arg-type]
        ({"state__update": "tests.batches.test_state_bolt.Letters"}, Word(Attempt(1, 0), 7), "'int' object is not"),  # type: ignore[arg-type]
    ],
)
def test_a_tuple_that_cannot_be_taken_fails_its_batch_at_once(
    url: str, many: bool, given: dict[str, Any], bad: Word, said: str
) -> None:
    """The error names the batch, the tuple and what is wrong with it, and nothing waits for a timeout."""
    stage = Stage(url, **given)
    stage.begin(Attempt(1, 0))
    tuples = [Tuple(f"{n}", "split", "default", 2, each) for n, each in enumerate([Word(Attempt(1, 0), "a"), bad])]
    if many:
        assert stage.bolt.process_many(tuples) == 2
        ((_, error),) = stage.failed.items()
    else:
        stage.bolt.process(tuples[0])
        with pytest.raises(RecordError) as raised:
            stage.bolt.process(tuples[1])
        error = str(raised.value)
    assert re.search(rf"counts: transaction 1, attempt 0: .*{said}", error)


@pytest.mark.parametrize("update", ["max:size", "tests.batches.test_state_bolt.summed"])
def test_an_update_that_raises_at_the_commit_names_the_key(url: str, update: str) -> None:
    """Of thousands of keys in a batch: the one whose stored value does not go with what has come."""
    stage = Stage(url, state__update=update)
    stage.batch(Attempt(1, 0), "a", "b")
    stage.begin(Attempt(2, 0))
    for word, size in (("a", 1), ("b", "x")):
        stage.send("default", Word(Attempt(2, 0), word, size))  # type: ignore[arg-type]
    with pytest.raises(RecordError, match=r"counts: key \('b',\), whose value is 1: TypeError: .*'str'.*state.update"):
        stage.commit(Attempt(2, 0))
    assert stage.stored() == {"a": [1, 1, None], "b": [1, 1, None]}


@pytest.mark.parametrize(("key", "value"), [("a", 10**5_000), (10**5_000, 1)], ids=["value", "key"])
def test_a_number_of_very_many_digits_fails_its_batch(url: str, key: Any, value: Any) -> None:
    """Python writes no number of more than 4,300 digits: the message does without it, and the bolt goes on."""
    stage = Stage(url, state__update="last:size")
    stage.begin(Attempt(1, 0))
    stage.send("default", Word(Attempt(1, 0), key, value))
    assert not stage.commit(Attempt(1, 0))
    assert re.search("state counts, key .* is not JSON .*4300 digits", next(iter(stage.failed.values())))
    assert stage.stored() == {}
    assert stage.batch(Attempt(1, 1), "b")


def test_true_is_not_the_key_1(url: str) -> None:
    """Python calls them equal, JSON does not; they are counted apart, in one batch and over several."""
    stage = Stage(url, state__kind="non_transactional")
    batches: list[list[Any]] = [[1, True, True, 1.0, [1], [True]], [True, 1, False, 0, 0, [True]]]
    for attempt, keys in zip([Attempt(1, 0), Attempt(2, 0)], batches, strict=True):
        stage.begin(attempt)
        for key in keys:
            stage.send("default", Word(attempt, key))
        assert stage.commit(attempt)
    stored = [(repr(key[0]), value) for key, value in stage.bolt.state.read_all().items()]
    assert sorted(stored) == [("(1,)", 1), ("(True,)", 2), ("0", 2), ("1", 3), ("False", 1), ("True", 3)]
    assert [str(row[1]) for row in stage.emitted[:2]] == ["1", "True"]


def test_numbers_that_are_equal_in_json_are_one_key(url: str) -> None:
    """Whether 1 and 1.0 come in one batch or in two, they are counted together; a list is the key that a tuple is."""
    stage = Stage(url)
    batches: list[list[Any]] = [[1, 1.0, 1.5], [1.0, [1, 2.0], (1, 2)]]
    for attempt, keys in zip([Attempt(1, 0), Attempt(2, 0)], batches, strict=True):
        stage.begin(attempt)
        for key in keys:
            stage.send("default", Word(attempt, key))
        assert stage.commit(attempt)
    assert stage.stored() == {1: [2, 3, 2], 1.5: [1, 1, None], (1, 2): [2, 2, None]}

"""The contract of stores of keyed state: one class of tests, which each store's module derives from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import pytest

from downspout.batches import Attempt, BatchStoreError, StaleAttemptError, StateContext, StateKind, StateStore
from downspout.errors import ConfigError

Open = Callable[[StateContext], StateStore]
"""Opens the state as another process would: the same place, and nothing in memory in common."""

MINE = StateContext("counts", StateKind.OPAQUE, "word-count")
THE, OF, ODD = ("the",), ("of",), ('"é\n\x00', 1, None, True, -2.5)


def put(store: StateStore, attempt: Attempt, values: dict[Any, Any]) -> None:
    with store.transaction(attempt) as change:
        change.write(values)


class StateContract:
    """What any store does. A module of a store has the fixture ``open_bare``, an :data:`Open`."""

    @pytest.fixture
    def open_state(self, open_bare: Open) -> Iterator[Callable[..., StateStore]]:
        with ExitStack() as stack:
            yield lambda **given: stack.enter_context(closing(open_bare(replace(MINE, **given))))

    def test_a_new_state_holds_nothing(self, open_state: Callable[..., StateStore]) -> None:
        store = open_state()
        with store.transaction(Attempt(1, 0)) as change:
            assert (dict(change.read([THE])), dict(change.replaced())) == ({}, {})
        assert dict(store.read_all()) == {}

    def test_what_is_written_is_there_for_the_next(self, open_state: Callable[..., StateStore]) -> None:
        """Another handle finds keys and values as they were, whatever JSON they are."""
        values = {THE: [1, 3, None], ODD: [1, {"a": [1, 2.5, "é\x00"], "b": None}, None]}
        put(open_state(), Attempt(1, 0), values)
        other = open_state()
        assert other.read_all() == values
        with other.transaction(Attempt(2, 0)) as change:
            assert change.read([ODD, OF]) == {ODD: values[ODD]}

    @pytest.mark.parametrize("kind", StateKind)
    def test_a_state_knows_whether_it_is_new(self, open_state: Callable[..., StateStore], kind: StateKind) -> None:
        store = open_state(kind=kind)
        assert (store.newest(), open_state(kind=kind).newest()) == (None, None)
        put(store, Attempt(7, 0), {})
        assert store.newest() == open_state(kind=kind).newest() == 7

    def test_values_of_another_meaning_do_not_get_in(self, open_state: Callable[..., StateStore]) -> None:
        """A state that counts by word neither adds up nor counts by user; who does not say what it is, may open it."""
        open_state(meaning="count by word")
        open_state(meaning="count by word")
        open_state()
        with pytest.raises(ConfigError, match="counts holds count by word, but is now to hold sum:size by word"):
            open_state(meaning="sum:size by word")

    def test_many_keys_are_read(self, open_state: Callable[..., StateStore]) -> None:
        """More keys than one statement takes come back, each with its value."""
        values = {(f"word {number}",): [1, number, None] for number in range(1_234)}
        store = open_state()
        put(store, Attempt(1, 0), values)
        with store.transaction(Attempt(2, 0)) as change:
            assert change.read([*values, THE]) == values

    def test_a_block_that_raises_stores_nothing(self, open_state: Callable[..., StateStore]) -> None:
        """An error within a transaction undoes all that it has written, and the next one goes on."""
        store = open_state()
        put(store, Attempt(1, 0), {THE: [1, 1, None]})

        def broken() -> None:
            with store.transaction(Attempt(2, 0)) as change:
                change.write({THE: [2, 5, 1], OF: [2, 1, None]})
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            broken()
        assert store.read_all() == {THE: [1, 1, None]}
        put(store, Attempt(2, 0), {OF: [2, 1, None]})
        assert store.read_all() == {THE: [1, 1, None], OF: [2, 1, None]}

    def test_a_later_attempt_learns_what_it_replaces(self, open_state: Callable[..., StateStore]) -> None:
        """Keys that an earlier attempt of the same transaction stored are named, by whichever task, and no others."""
        one, other = open_state(), open_state()
        put(one, Attempt(1, 0), {("old",): [1, 1, None]})
        put(one, Attempt(2, 3), {THE: [2, 1, None]})
        put(other, Attempt(2, 3), {OF: [2, 7, None]})
        with one.transaction(Attempt(2, 4)) as change:
            assert change.replaced() == {THE: [2, 1, None], OF: [2, 7, None]}
            change.write({THE: [2, 2, None]})
        with other.transaction(Attempt(2, 4)) as change:
            assert change.replaced() == {OF: [2, 7, None]}
        with other.transaction(Attempt(3, 0)) as change:
            assert change.replaced() == {}

    @pytest.mark.parametrize("late", [Attempt(2, 0), Attempt(1, 9)])
    def test_an_earlier_attempt_is_refused(self, open_state: Callable[..., StateStore], late: Attempt) -> None:
        """Once a later attempt was begun, by another task or without a key, none before it is stored."""
        store = open_state()
        put(open_state(), Attempt(2, 1), {})
        with pytest.raises(StaleAttemptError, match="comes too late") as raised:
            put(store, late, {THE: [2, 1, None]})
        assert not raised.value.passes
        assert dict(store.read_all()) == {}
        put(store, Attempt(2, 1), {THE: [2, 1, None]})

    def test_without_transactions_any_attempt_is_stored(self, open_state: Callable[..., StateStore]) -> None:
        """A state of the kind that holds no txid knows of no order."""
        store = open_state(kind=StateKind.NON_TRANSACTIONAL)
        put(store, Attempt(5, 0), {THE: 4})
        put(store, Attempt(1, 0), {THE: 5})
        assert store.read_all() == {THE: 5}

    def test_states_do_not_see_each_other(self, open_state: Callable[..., StateStore]) -> None:
        """Two states in one place have their own keys and their own attempts."""
        put(open_state(), Attempt(7, 0), {THE: [7, 1, None]})
        other = open_state(name="others", owner="another")
        put(other, Attempt(1, 0), {})
        assert dict(other.read_all()) == {}

    @pytest.mark.parametrize("given", [{"owner": "another"}, {"kind": StateKind.TRANSACTIONAL}])
    def test_a_state_of_others_is_refused(self, open_state: Callable[..., StateStore], given: dict[str, Any]) -> None:
        """Batches of another id, or values of another kind, do not get in; the error names the state."""
        put(open_state(), Attempt(1, 0), {THE: [1, 1, None]})
        with pytest.raises(BatchStoreError, match="state counts"):
            open_state(**given)

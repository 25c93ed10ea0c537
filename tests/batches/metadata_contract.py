"""The contract of stores of metadata: one class of tests, which each store's module derives from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial

import pytest

from downspout.batches import (
    BatchIdInUseError,
    BatchRange,
    BatchStore,
    BatchStoreContext,
    CoordinatorState,
    StaleCoordinatorError,
)
from tests.waiting import eventually

Open = Callable[[BatchStoreContext], BatchStore]
"""Opens the store as another process would: the same place, and nothing in memory in common."""
OpenId = Callable[..., BatchStore]

P0, P1, P2 = "lines/0", "lines/1", "a.b-c_d/12"
MINE = "wc-1-1700000000"


def ranged(*ranges: int) -> dict[int, BatchRange]:
    return {txid: BatchRange(10 * txid, 10 * txid + 9, MINE) for txid in ranges}


class MetadataContract:
    """What any store does. A module of a store has the fixture ``open_bare``, an :data:`Open`."""

    @pytest.fixture
    def opened(self, open_bare: Open) -> Iterator[OpenId]:
        with ExitStack() as stack:
            yield lambda id="wc", topology="wc": stack.enter_context(
                closing(open_bare(BatchStoreContext(id, topology, MINE)))
            )

    def test_a_new_store_holds_nothing(self, opened: OpenId) -> None:
        """Of an id that never stored anything, nothing is known, before the claim and after it."""
        store = opened()
        for _ in range(2):
            assert (store.load_coordinator(), store.load_partitions(1)) == (None, None)
            assert (dict(store.load_ranges([P0, P1])), list(store.list_partitions())) == ({}, [])
            assert dict(store.load_ranges([])) == {}
            store.claim(MINE)

    def test_what_is_stored_is_there_for_the_next(self, opened: OpenId) -> None:
        """Another process finds the coordinator's state, the partitions of transactions, and their ranges."""
        first = opened()
        epoch = first.claim(MINE)
        state = CoordinatorState(3, {3: 1, 4: 0})
        first.save_coordinator(epoch, CoordinatorState(2, {2: 7}))
        first.save_coordinator(epoch, state)
        first.save_partitions(epoch, 3, [["lines", 0], ["lines", 1]])
        first.save_ranges(epoch, 2, {P0: BatchRange(0, 9, MINE), P2: BatchRange.empty(7, MINE)})
        first.save_ranges(epoch, 3, {P0: BatchRange(10, 10, MINE, "d1Qy0fTsTiy1dHLU1Xlbvw")})
        other = opened()
        assert other.load_coordinator() == state
        assert other.load_partitions(3) == [["lines", 0], ["lines", 1]]
        assert other.load_partitions(4) is None
        assert other.load_ranges([P0, P1, P2]) == {
            P0: {2: BatchRange(0, 9, MINE), 3: BatchRange(10, 10, MINE, "d1Qy0fTsTiy1dHLU1Xlbvw")},
            P2: {2: BatchRange(7, 6, MINE)},
        }
        assert sorted(other.list_partitions()) == sorted([P0, P2])

    def test_a_later_write_takes_the_place_of_an_earlier_one(self, opened: OpenId) -> None:
        """Ranges and partitions of a transaction are replaced; those that are not named stay."""
        store = opened()
        epoch = store.claim(MINE)
        store.save_ranges(epoch, 1, {P0: BatchRange(0, 9), P1: BatchRange(0, 4)})
        store.save_ranges(epoch, 1, {P1: BatchRange(0, 2)})
        store.save_partitions(epoch, 1, [["lines", 0]])
        store.save_partitions(epoch, 1, [])
        assert store.load_ranges([P0, P1]) == {P0: {1: BatchRange(0, 9)}, P1: {1: BatchRange(0, 2)}}
        assert store.load_partitions(1) == []

    def test_ranges_are_deleted_from_a_transaction_on_and_below_one(self, opened: OpenId) -> None:
        """Each deletion takes what it names, of the partitions that it names, and no more."""
        store = opened()
        epoch = store.claim(MINE)
        for txid, found in ranged(1, 2, 3, 4).items():
            store.save_ranges(epoch, txid, {P0: found, P1: found})
            store.save_partitions(epoch, txid, [["lines", txid]])
        store.delete_ranges(epoch, 4, [P0, P2])
        store.delete_below(epoch, 3, [P1])
        assert store.load_ranges([P0, P1]) == {P0: ranged(1, 2, 3), P1: ranged(3, 4)}
        assert [store.load_partitions(txid) for txid in (2, 3)] == [None, [["lines", 3]]]
        store.delete_ranges(epoch, 0, [P1, P2])
        store.delete_below(epoch, 4, [])
        assert (list(store.list_partitions()), store.load_partitions(3)) == ([P0], None)
        store.save_ranges(epoch, 5, {P1: BatchRange(5, 5)})
        assert store.load_ranges([P1]) == {P1: {5: BatchRange(5, 5)}}

    def test_each_claim_has_a_higher_epoch(self, opened: OpenId) -> None:
        """No epoch is given twice, whether the one before was given back or not."""
        epochs = []
        for number in range(4):
            store = opened()
            epochs.append(store.claim(MINE))
            if number % 2:
                store.release(epochs[-1])
                store.close()
        assert epochs == sorted(set(epochs))

    def test_a_stale_coordinator_and_its_emitters_are_refused(self, opened: OpenId) -> None:
        """Once the topology has claimed again, nothing is stored with the epoch before, by any handle."""
        old, emitter, new = opened(), opened(), opened()
        before = old.claim(MINE)
        old.save_coordinator(before, CoordinatorState(5, {5: 0}))
        old.save_partitions(before, 5, [["lines", 5]])
        now = new.claim(MINE)
        ranges = {P0: BatchRange(0, 1)}
        for store in (old, emitter):
            writes: list[Callable[[], None]] = [
                partial(store.save_coordinator, before, CoordinatorState(6, {})),
                partial(store.save_partitions, before, 5, []),
                partial(store.save_ranges, before, 5, ranges),
                partial(store.delete_ranges, before, 1, [P0]),
                partial(store.delete_below, before, 9, [P0]),
            ]
            for write in writes:
                with pytest.raises(StaleCoordinatorError):
                    write()
        assert (new.load_coordinator(), dict(new.load_ranges([P0]))) == (CoordinatorState(5, {5: 0}), {})
        assert new.load_partitions(5) == [["lines", 5]]
        emitter.save_ranges(now, 5, {P0: BatchRange(0, 1)})
        assert new.load_ranges([P0]) == {P0: {5: BatchRange(0, 1)}}

    def test_another_topology_is_refused_while_the_first_one_lives(self, opened: OpenId) -> None:
        """A claim of another owner fails while the holder's process is there, names it, and changes nothing."""
        holder = opened()
        epoch = holder.claim(MINE)
        with pytest.raises(BatchIdInUseError, match="wc") as raised:
            opened(topology="other").claim("other-1-1")
        assert MINE in str(raised.value)
        holder.save_coordinator(epoch, CoordinatorState(2, {}))
        holder.release(epoch)
        assert opened(topology="other").claim("other-1-1") > epoch

    def test_a_claim_ends_with_its_process(self, opened: OpenId) -> None:
        """A store that is closed without giving the claim back holds nobody up."""
        holder = opened()
        epoch = holder.claim(MINE)
        holder.close()
        other = opened(topology="other")

        def claimed() -> int | None:
            with suppress(BatchIdInUseError):  # PostgreSQL sees some moments later that a connection has ended
                return other.claim("other-1-1")
            return None

        assert eventually(claimed, otherwise="the claim did not end") > epoch

    def test_ids_do_not_see_each_other(self, opened: OpenId) -> None:
        """Two ids in one place have their own claims, states and ranges."""
        one, two = opened(), opened("other")
        epoch = one.claim(MINE)
        two.claim("other-1-1")
        one.save_coordinator(epoch, CoordinatorState(2, {}))
        one.save_ranges(epoch, 1, {P0: BatchRange(0, 1)})
        assert (two.load_coordinator(), dict(two.load_ranges([P0])), list(two.list_partitions())) == (None, {}, [])

"""The contract of offset stores: one class of tests, which each store's module derives from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from downspout.kafka import TopicPartition
from downspout.spout import OffsetStore, StaleOwnerError, StoredOffset

Open = Callable[[str], OffsetStore]
"""Opens the store for a consumer group, as another process would: the same place, and nothing in memory in common."""

TOPIC = "orders"
P0, P1, P2 = (TopicPartition(TOPIC, number) for number in range(3))
METADATA = '{"topologyId":"é-1","taskId":3,"threadName":"done 7-9"}'


class StoreContract:
    """What any store does. A module of a store has the fixture ``open_bare``, an :data:`Open`."""

    @pytest.fixture
    def open_store(self, open_bare: Open) -> Iterator[Open]:
        with ExitStack() as stack:
            yield lambda group: stack.enter_context(closing(open_bare(group)))

    def test_a_new_store_holds_nothing(self, open_store: Open) -> None:
        """Of a group that never stored anything, nothing is known."""
        store = open_store("g")
        assert (dict(store.load([P0, P1])), dict(store.list())) == ({}, {})

    def test_what_is_stored_is_there_for_the_next(self, open_store: Open) -> None:
        """Another handle on the same place finds offset and metadata, and of other partitions nothing."""
        first = open_store("g")
        epoch = first.claim([P0, P1])[P0].epoch
        first.store({P0: StoredOffset(918, METADATA, epoch)})
        second = open_store("g")
        assert second.load([P0, P1]) == {P0: StoredOffset(918, METADATA, epoch)}
        assert second.list() == {P0: StoredOffset(918, METADATA, epoch)}

    def test_a_claim_tells_what_is_stored(self, open_store: Open) -> None:
        """Who takes partitions over learns their offsets; a partition that nobody stored for has none."""
        first = open_store("g")
        first.store({P1: StoredOffset(7, METADATA, first.claim([P1])[P1].epoch)})
        first.close()
        found = open_store("g").claim([P0, P1])
        assert [(found[tp].offset, found[tp].metadata) for tp in (P0, P1)] == [(None, ""), (7, METADATA)]

    def test_a_later_store_takes_the_place_of_an_earlier_one(self, open_store: Open) -> None:
        """The last store holds, also where its offset is lower."""
        store = open_store("g")
        epoch = store.claim([P0])[P0].epoch
        for offset in (5, 9, 3):
            store.store({P0: StoredOffset(offset, "", epoch)})
            assert store.load([P0])[P0].offset == offset

    def test_each_claim_has_a_higher_epoch(self, open_store: Open) -> None:
        """No epoch is given twice, whoever claims, and whether anything was stored between."""
        epochs = []
        for number in range(4):
            store = open_store("g")
            epochs.append(store.claim([P0])[P0].epoch)
            if number % 2:
                store.store({P0: StoredOffset(number, "", epochs[-1])})
        assert epochs == sorted(set(epochs))
        assert epochs[0] > 0

    def test_a_stale_owner_is_refused(self, open_store: Open) -> None:
        """Once another has claimed a partition, its earlier owner stores nothing more for it."""
        old, new = open_store("g"), open_store("g")
        before = old.claim([P0])[P0].epoch
        old.store({P0: StoredOffset(5, "old", before)})
        now = new.claim([P0])[P0].epoch
        with pytest.raises(StaleOwnerError):
            old.store({P0: StoredOffset(6, "old", before)})
        assert new.load([P0])[P0].offset == 5
        new.store({P0: StoredOffset(8, "new", now)})
        with pytest.raises(StaleOwnerError):
            old.store({P0: StoredOffset(6, "old", before)})
        assert new.load([P0])[P0][:2] == (8, "new")

    def test_many_are_stored_together_or_not_at_all(self, open_store: Open) -> None:
        old, new = open_store("g"), open_store("g")
        mine = old.claim([P0, P1, P2])
        old.store({tp: StoredOffset(1, "", mine[tp].epoch) for tp in (P0, P1, P2)})
        new.claim([P1])
        with pytest.raises(StaleOwnerError):
            old.store({tp: StoredOffset(2, "", mine[tp].epoch) for tp in (P0, P1, P2)})
        assert {tp: stored.offset for tp, stored in new.list().items()} == {P0: 1, P1: 1, P2: 1}
        old.store({tp: StoredOffset(3, "", mine[tp].epoch) for tp in (P0, P2)})
        assert {tp: stored.offset for tp, stored in new.list().items()} == {P0: 3, P1: 1, P2: 3}

    def test_groups_do_not_see_each_other(self, open_store: Open) -> None:
        """Two groups in one place have their own offsets and epochs."""
        one, two = open_store("g"), open_store("h")
        epoch = one.claim([P0])[P0].epoch
        two.claim([P0])
        one.store({P0: StoredOffset(5, "", epoch)})
        assert (dict(two.list()), one.load([P0])[P0].offset) == ({}, 5)

    def test_what_is_deleted_is_gone(self, open_store: Open) -> None:
        """Deleted partitions are not listed any more, others stay, and a missing one is no error."""
        store = open_store("g")
        mine = store.claim([P0, P1])
        store.store({tp: StoredOffset(4, METADATA, mine[tp].epoch) for tp in (P0, P1)})
        store.close()
        other = open_store("g")
        other.delete([P0, P2])
        assert {tp: stored.offset for tp, stored in other.list().items()} == {P1: 4}
        assert open_store("g").claim([P0])[P0].offset is None

    def test_metadata_of_full_length_comes_back(self, open_store: Open) -> None:
        store = open_store("g")
        epoch = store.claim([P0])[P0].epoch
        store.store({P0: StoredOffset(0, "é" * 4_096, epoch)})
        assert store.load([P0])[P0].metadata == "é" * 4_096

    def test_nothing_is_nothing(self, open_store: Open) -> None:
        store = open_store("g")
        assert (dict(store.claim([])), dict(store.load([]))) == ({}, {})
        store.store({})
        store.delete([])
        assert dict(store.list()) == {}

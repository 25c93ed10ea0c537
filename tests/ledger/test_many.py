"""Many records by one call: the ledger is as after one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from downspout.ledger import PartitionLedger

SPANS = st.tuples(st.integers(0, 40), st.integers(1, 12))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.lists(st.integers(1, 3), min_size=1, max_size=10)),
        st.tuples(st.just("ack"), SPANS),
        st.tuples(st.just("fail"), st.integers(0, 40)),
    ),
    max_size=15,
)


def read(ledger: PartitionLedger, offsets: list[int], together: bool) -> None:
    """Emit fresh records, as many together as the ledger takes, or each for itself."""
    while offsets:
        count = ledger.emit_many(offsets, 0) if together else 0
        if not count:
            ledger.emit(offsets[0], 0)
        offsets = offsets[max(count, 1) :]


def state(ledger: PartitionLedger) -> tuple[object, ...]:
    ledger.check()
    flying = [offset for offset in range(200) if ledger.emitted_at(offset) is not None]
    done = list(ledger.done_beyond(0))
    return ledger.next, ledger.commit_point(), ledger.in_flight, ledger.failed, ledger.outstanding, flying, done


def test_one_call_takes_all_up_to_a_gap() -> None:
    """As many as follow each other are taken at once, and not one by one."""
    ledger = PartitionLedger(10)
    assert ledger.emit_many([10, 11, 12, 14, 15], 0) == 3
    assert ledger.emit_many([14, 15], 0) == 2


@given(steps=STEPS, done=st.sets(st.integers(3, 30)), told=st.sets(st.integers(3, 30)))
def test_many_come_to_what_one_by_one_comes_to(steps: list[tuple[str, object]], done: set[int], told: set[int]) -> None:
    """Whatever is read with gaps, acked twice, failed, done or told of before: all that can be asked is equal."""
    ranges, failures = [(offset, offset + 1) for offset in done], dict.fromkeys(told - done, 1)
    one, many = (PartitionLedger(0, done=ranges, failures=failures) for _ in range(2))
    for kind, given_ in steps:
        if kind == "read":
            offsets, at = [], one.next
            for step in given_:
                offsets.append(at + step - 1)
                at += step
            read(one, offsets, together=False)
            read(many, offsets, together=True)
        elif kind == "ack":
            start, size = given_
            assert many.ack_many(start, start + size) == sum(map(one.ack, range(start, start + size)))
        else:
            assert (one.fail(given_, 0) is None) == (many.fail(given_, 0) is None)
        assert state(one) == state(many)

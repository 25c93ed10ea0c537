"""The cost of the ledger alone, without Kafka, Storm or records.

    python -m bench.ledger

A cycle is emit + ack + commit point for one record. Out of order: acks are shuffled within a window of 10,000. The best
of three runs counts, as the least disturbed.
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections.abc import Callable

from downspout.ledger.offsets import PartitionLedger

CYCLES = 200_000
WINDOW = 10_000
FAILURES = 20_000


def in_order() -> None:
    """Each record is acked before the next is emitted; a commit point after each ack."""
    ledger = PartitionLedger(0)
    emit, ack, commit_point = ledger.emit, ledger.ack, ledger.commit_point
    for offset in range(CYCLES):
        emit(offset, 0)
        ack(offset)
        commit_point()
    ledger.committed(ledger.commit_point())


def out_of_order(orders: list[list[int]]) -> None:
    """A window of records is in flight; they are acked in any order, with a commit point after each ack."""
    ledger = PartitionLedger(0)
    emit, ack, commit_point = ledger.emit, ledger.ack, ledger.commit_point
    for order in orders:
        for _ in order:
            emit(ledger.next, 0)
        for offset in order:
            ack(offset)
            commit_point()
        ledger.committed(commit_point())


def in_ranges() -> None:
    """Like :func:`in_order`, with ranges of a hundred records."""
    ledger = PartitionLedger(0)
    for start in range(0, 100 * CYCLES, 100):
        ledger.emit_range(start, start + 100, 100, 0)
        ledger.ack(start)
        ledger.commit_point()
    ledger.committed(ledger.commit_point())


def failing(ledger: PartitionLedger) -> None:
    """All records in flight fail at once, and the lowest retry is looked up."""
    fail, earliest = ledger.fail, ledger.earliest_ready_retry
    for offset in range(FAILURES):
        fail(offset, 0)
    assert earliest(0) == 0


def failing_and_retried(ledger: PartitionLedger) -> None:
    """All fail at once; then each is found as the lowest due retry, emitted again and acked."""
    failing(ledger)
    for _ in range(FAILURES):
        retry = ledger.earliest_ready_retry(0)
        assert retry is not None
        ledger.emit(retry, 0)
        ledger.ack(retry)
    assert ledger.commit_point() == FAILURES


def flying(count: int) -> PartitionLedger:
    """Return a ledger that has records in flight."""
    ledger = PartitionLedger(0)
    for offset in range(count):
        ledger.emit(offset, 0)
    return ledger


def seconds(work: Callable[..., object], prepare: Callable[[], object] | None = None) -> float:
    """Return the best CPU time of three runs, each on a new result of ``prepare``."""
    best = float("inf")
    for _ in range(3):
        arguments = [prepare()] if prepare else []
        gc.collect()
        began = time.process_time()
        work(*arguments)
        best = min(best, time.process_time() - began)
    return best


def bytes_each(make: Callable[[int], PartitionLedger], count: int = 100_000) -> float:
    """Return the memory per record of ``count`` outstanding records."""
    gc.collect()
    tracemalloc.start()
    ledger = make(count)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert ledger.outstanding == count
    return held / count


def all_failed(count: int) -> PartitionLedger:
    """Return a ledger in which all records wait for a retry."""
    ledger = flying(count)
    for offset in range(count):
        ledger.fail(offset, 0)
    return ledger


def every_second_acked(count: int) -> PartitionLedger:
    """Return a ledger with the maximum of holes."""
    ledger = flying(count)
    for offset in range(1, count, 2):
        ledger.ack(offset)
    return ledger


def main() -> None:
    shuffled = random.Random(1)
    orders = [shuffled.sample(range(s, s + WINDOW), WINDOW) for s in range(0, CYCLES, WINDOW)]
    ordered, unordered = seconds(in_order), seconds(lambda: out_of_order(orders))
    failed = seconds(failing, lambda: flying(FAILURES))
    print(f"cycles in order                     {CYCLES / ordered:12,.0f} /s   (aim: 400,000)")
    print(f"cycles out of order, window {WINDOW:,}  {CYCLES / unordered:12,.0f} /s   (aim: 250,000)")
    print(f"cycles of ranges, in order          {CYCLES / seconds(in_ranges):12,.0f} /s   (aim: 100,000)")
    print(f"{FAILURES:,} failures at once             {failed:12.3f} s    (aim: 0.1)")
    retried = seconds(failing_and_retried, lambda: flying(FAILURES))
    print(f"  and each found, retried and acked {retried:12.3f} s")
    print("memory of an outstanding record")
    print(f"  out                               {bytes_each(flying):12.0f} bytes")
    print(f"  waiting for a retry               {bytes_each(all_failed):12.0f} bytes")
    print(f"  every second one acked            {bytes_each(every_second_acked):12.0f} bytes")


if __name__ == "__main__":
    main()

"""Aborted batches that are skipped silently.

Wrong: with ``isolation_level="read_committed"`` the client leaves out the batches of aborted transactions, and
    there is no way to learn their offsets. An audit must distinguish them from records that are lost.
Patch: the class of what was fetched of a partition notes each aborted batch as it is passed.
Self-test: the class has the question that it asks of each batch.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: a poll, or a callback, reports the offsets that were left out.
"""

from __future__ import annotations

from typing import Any

from downspout.kafka.port import TopicPartition

CONSUMER = {"_fetcher.PartitionRecords._is_batch_aborted": "function"}


def noting_aborted(known: type[Any], aborted: list[tuple[TopicPartition, int, int]]) -> type[Any]:
    """Return a class for the records of a fetch that notes what is left out."""

    class NotingAborted(known):
        def _is_batch_aborted(self, batch: Any) -> bool:
            is_aborted = bool(super()._is_batch_aborted(batch))
            if is_aborted:
                aborted.append((self.topic_partition, batch.base_offset, batch.records_count))
            return is_aborted

    return NotingAborted

"""What kafka-python's fetcher does with what it has fetched of a partition, as far as we need it done otherwise.

* *Aborted batches.* It passes them without a word; here they are noted.
* *Errors.* A batch that cannot be read is an error of one ``poll``. The next one would never return: nothing more comes
  of these bytes, and they count as not used up. So the error stays, until somebody seeks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from downspout.kafka.port import TopicPartition


def watched(known: type[Any], aborted: list[tuple[TopicPartition, int, int]]) -> type[Any]:
    """Return a class for the records of a fetch that does so.

    Args:
        known: the client's class, or one made of it.
        aborted: where aborted batches are noted: partition, first offset, number of records.
    """

    class Watched(known):
        _failure: Exception | None = None

        def _is_batch_aborted(self, batch: Any) -> bool:
            is_aborted = bool(super()._is_batch_aborted(batch))
            if is_aborted:
                aborted.append((self.topic_partition, batch.base_offset, batch.records_count))
            return is_aborted

        def take(self, n: int | None = None) -> Sequence[Any]:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            try:
                found: Sequence[Any] = super().take(n)
            except Exception as error:
                self._failure = error
                raise
            return found

    return Watched

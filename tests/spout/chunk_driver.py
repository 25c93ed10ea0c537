"""Drives a spout that emits chunks, with a bolt that cannot bear some records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from downspout.component import Failure
from downspout.dead_letters import DeadLetter, read_dead_letters
from tests.spout.spout_driver import GROUP, TOPIC, Driver, Kafka, fill

LETTERS = f"{GROUP}.dead-letters"
SIZE = 40
IN_VAIN_MAX = 3


class Chunks(Driver):
    """A spout in chunk mode, and a bolt that cannot bear some records."""

    def __init__(self, kafka: Kafka, **given: Any) -> None:
        self.answered = 0
        self.acked: Counter[int] = Counter()
        super().__init__(kafka, **{"emit": "chunk", "chunk_records_max": SIZE, **given})

    def _emit(self, values: list[Any], tup_id: str | None = None, **_: Any) -> None:
        self.emitted.append((tup_id, values))

    @property
    def ranges(self) -> list[str]:
        return [tup_id.rpartition("/")[2] for tup_id, _ in self.emitted]

    def id_of(self, span: str) -> str:
        """Return the id under which a range of partition 0 was emitted last."""
        return next(tup_id for tup_id, _ in reversed(self.emitted) if tup_id.endswith(f"/0/{span}"))

    def answer(self, poison: Collection[int] = (), failure: Failure | None = None) -> None:
        out, self.answered = self.emitted[self.answered :], len(self.emitted)
        failed = []
        for tup_id, chunk in out:
            offsets = chunk.column("offset").to_pylist()
            if set(offsets) & set(poison):
                failed.append(tup_id)
            else:
                self.spout.ack(tup_id)
                self.acked.update(offsets)
        for tup_id in failed:
            self.spout.fail_with(tup_id, failure)

    def serve(self, poison: Collection[int] = (), failure: Failure | None = None) -> None:
        """Answer all that comes, with time for the back-off, until nothing comes any more; then commit."""
        in_vain = 0
        while in_vain < IN_VAIN_MAX:
            in_vain = 0 if self.run(2) else in_vain + 1
            self.answer(poison, failure)
            self.kafka.clock.sleep(11)
        self.commit()

    def letters(self) -> list[DeadLetter]:
        return sorted(read_dead_letters(self.kafka, LETTERS), key=lambda letter: letter.offset)


def with_a_hundred_records(kafka: Kafka) -> Kafka:
    """Make one topic of one partition and a hundred records, whose values are their offsets."""
    kafka.create_topic(TOPIC, 1)
    fill(kafka, 100)
    return kafka

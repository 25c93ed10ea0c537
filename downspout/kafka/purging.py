"""Delete dead letters for good; what is no letter of ours stays, unless told otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kafka.errors import KafkaError

from downspout.errors import BrokerError, ConfigError, coordinates
from downspout.kafka.deadletter import read_copies
from downspout.kafka.letters import partitions_of
from downspout.kafka.patience import describe
from downspout.kafka.port import Cluster, TopicPartition

__all__ = ["Purge", "plan_purge", "purge"]


@dataclass(frozen=True, slots=True)
class Purge:
    """What a purge deletes of one partition of the dead-letter topic: the letters in ``[start, before)``."""

    partition: int
    start: int
    before: int

    @property
    def count(self) -> int:
        """How many offsets."""
        return self.before - self.start


def plan_purge(cluster: Cluster, letters: str, before: Mapping[int | None, int], *, force: bool = False) -> list[Purge]:
    """Return what a purge deletes; :func:`purge` does it.

    All records in it are read first: one that is no letter of ours may be anybody's, in a topic that was mistyped, and
    what is deleted is gone.

    Args:
        cluster: Kafka.
        letters: the dead-letter topic.
        before: letters below this offset are deleted, by partition; the key None is for all others.
        force: take records that are no letters of ours, too.

    Raises:
        BrokerError: there is no such topic or partition, or it does not answer.
        ConfigError: the offset lies beyond the end; or there are records below it that are no letters of ours.
    """
    numbers = partitions_of(cluster, letters)
    if unknown := sorted(number for number in before if number is not None and number not in numbers):
        raise BrokerError(
            f"{coordinates(letters, unknown[0])} does not exist", cure=f"a partition below {len(numbers)}"
        )
    partitions = [TopicPartition(letters, number) for number in sorted(numbers)]
    consumer = cluster.consumer(group=None)
    try:
        starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    except KafkaError as error:
        raise BrokerError(f"{letters}: {describe(error)}", cure="check the broker") from error
    finally:
        consumer.close()
    plan = _ranges(letters, before, starts, ends)
    if not force:
        _refuse_foreign(cluster, letters, plan)
    return plan


def _ranges(
    letters: str,
    before: Mapping[int | None, int],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> list[Purge]:
    plan = []
    for tp in sorted(starts):
        offset = before.get(tp.partition, before.get(None, 0))
        if offset > ends[tp] and tp.partition in before:
            raise ConfigError(
                f"{coordinates(letters, tp.partition)} ends at {ends[tp]}: {offset} lies beyond it",
                cure=f"at most {ends[tp]}",
            )
        if (offset := min(offset, ends[tp])) > starts[tp]:
            plan.append(Purge(tp.partition, starts[tp], offset))
    return plan


def _refuse_foreign(cluster: Cluster, letters: str, plan: Iterable[Purge]) -> None:
    for letter in read_copies(cluster, letters, {part.partition: part.before for part in plan}):
        if not letter.is_ours:
            record = letter.letter
            raise ConfigError(
                f"{coordinates(record.topic, record.partition, record.offset)} is no dead letter of ours, and a purge "
                "would delete it: nothing was deleted",
                cure="the dead-letter topic (kafka.dead_letter_topic), or --force where letters and others are mixed",
            )


def purge(cluster: Cluster, letters: str, plan: Iterable[Purge]) -> None:
    """Delete what was planned, for good.

    Raises:
        BrokerError: the broker refuses.
    """
    for part in plan:
        cluster.delete_records(letters, part.partition, part.before)

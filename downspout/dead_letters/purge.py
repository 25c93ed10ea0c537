"""Deletes dead letters for good; other records in their topic stay, unless ``force`` says otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kafka.errors import KafkaError

from downspout.dead_letters.dead_letter import read_copies
from downspout.dead_letters.replay import partitions_of
from downspout.errors import BrokerError, ConfigError, coordinates
from downspout.kafka.port import Cluster, TopicPartition
from downspout.kafka.retry_gate import describe


@dataclass(frozen=True, slots=True)
class Purge:
    """What a purge deletes of one partition of the dead-letter topic: the dead letters in ``[start, before)``."""

    partition: int
    start: int
    before: int

    @property
    def count(self) -> int:
        """How many offsets."""
        return self.before - self.start


def plan_purge(cluster: Cluster, topic: str, before: Mapping[int | None, int], *, force: bool = False) -> list[Purge]:
    """Return what a purge deletes; :func:`purge` does it.

    All records in it are read first: one that Downspout did not write may belong to someone, in a mistyped topic, and
    what is deleted is gone.

    Args:
        before: dead letters below this offset are deleted, by partition; the key None is for all others.
        force: delete records that Downspout did not write, too.

    Raises:
        ConfigError: the offset lies beyond the end; or there are records below it that Downspout did not write.
    """
    numbers = partitions_of(cluster, topic)
    if unknown := sorted(number for number in before if number is not None and number not in numbers):
        raise BrokerError(f"{coordinates(topic, unknown[0])} does not exist", cure=f"a partition below {len(numbers)}")
    partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
    consumer = cluster.consumer(group=None)
    try:
        starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    except KafkaError as error:
        raise BrokerError(f"{topic}: {describe(error)}", cure="check the broker") from error
    finally:
        consumer.close()
    plan = _ranges(topic, before, starts, ends)
    if not force:
        _refuse_foreign(cluster, topic, plan)
    return plan


def _ranges(
    topic: str,
    before: Mapping[int | None, int],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> list[Purge]:
    plan = []
    for tp in sorted(starts):
        offset = before.get(tp.partition, before.get(None, 0))
        if offset > ends[tp] and tp.partition in before:
            raise ConfigError(
                f"{coordinates(topic, tp.partition)} ends at {ends[tp]}: {offset} is beyond that",
                cure=f"at most {ends[tp]}",
            )
        if (offset := min(offset, ends[tp])) > starts[tp]:
            plan.append(Purge(tp.partition, starts[tp], offset))
    return plan


def _refuse_foreign(cluster: Cluster, topic: str, plan: Iterable[Purge]) -> None:
    for dead_letter in read_copies(cluster, topic, {part.partition: part.before for part in plan}):
        if not dead_letter.is_ours:
            record = dead_letter.record
            raise ConfigError(
                f"{coordinates(record.topic, record.partition, record.offset)} was not written by Downspout, and a "
                "purge would delete it. Nothing was deleted",
                cure="the dead-letter topic (kafka.dead_letter_topic), or --force where letters and others are mixed",
            )


def purge(cluster: Cluster, topic: str, plan: Iterable[Purge]) -> None:
    """Delete what was planned, for good. Raises BrokerError: the broker refuses."""
    for part in plan:
        cluster.delete_records(topic, part.partition, part.before)

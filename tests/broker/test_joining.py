"""How the client's consumer joins its group, and learns that it was removed: kafka-python's traps."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any

import pytest
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

from downspout.broker import EmbeddedKafka
from downspout.kafka import KafkaCluster, KafkaConsumerPort, TopicPartition
from tests.broker.scene import polled, run_until
from tests.kafka.broker_stage import RealStage
from tests.kafka.stage import CLIENT, Deaf, Facts, die_between_two_rounds, fall_out_while_joining
from tests.spout.broker_kafka import BrokerGroup

pytestmark = pytest.mark.broker


def test_a_join_that_outlasts_the_poll_is_finished(
    cluster: KafkaCluster, kafka_broker: EmbeddedKafka, topic_name: str, consumers: list[KafkaConsumerPort]
) -> None:
    """New partitions arrive although every poll is too short for a whole join."""
    from kafka.admin import KafkaAdminClient

    cluster.ensure_topic(topic_name, 1)
    consumer = cluster.consumer(group=topic_name, client={"metadata_max_age_ms": 50, "heartbeat_interval_ms": 100})
    consumers.append(consumer)
    consumer.subscribe([topic_name], Deaf())
    admin = KafkaAdminClient(bootstrap_servers=kafka_broker.bootstrap)
    try:
        for total in range(1, 6):
            if total > 1:
                admin.create_partitions({topic_name: total})

            def has_them(total: int = total) -> bool:
                consumer.poll(2, 10)
                return len(consumer.assignment()) == total and not consumer.rejoin_pending()

            run_until(has_them)
    finally:
        admin.close()


class Noting(Deaf):
    revoked = 0

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.revoked += 1


def test_a_rebalance_that_a_poll_meets_half_way_waits_for_the_next(
    cluster: KafkaCluster, topic_name: str, consumers: list[KafkaConsumerPort]
) -> None:
    """A poll that began without a pending join revokes nothing; it ends, so that what is done can be committed."""
    cluster.ensure_topic(topic_name, 2)
    client = {"heartbeat_interval_ms": 50, "fetch_max_wait_ms": 20}
    one, two = (cluster.consumer(group=topic_name, client=client) for _ in range(2))
    consumers += [one, two]
    noted = Noting()
    one.subscribe([topic_name], noted)
    run_until(lambda: polled(one) and len(one.assignment()) == 2 and not one.rejoin_pending())
    before = noted.revoked
    two.subscribe([topic_name], Deaf())
    enough = threading.Event()

    def join() -> None:  # poll by poll: on a busy machine the first may be over before it has asked to join
        while not enough.is_set():
            two.poll(200, 10)

    joining = threading.Thread(target=join)
    joining.start()
    try:
        run_until(lambda: one.poll(1000, 10) == {} and one.rejoin_pending())
        assert (noted.revoked, len(one.assignment())) == (before, 2)
        one.poll(2000, 10)
        assert noted.revoked == before + 1
    finally:
        enough.set()
        joining.join()


def test_a_rebalance_that_comes_up_between_question_and_poll_waits_for_the_next(
    cluster: KafkaCluster, topic_name: str, consumers: list[KafkaConsumerPort]
) -> None:
    """A member that was told that no rejoin is pending keeps its partitions through its next poll."""
    cluster.ensure_topic(topic_name, 1)
    revoked: list[Collection[TopicPartition]] = []
    listener: Any = Deaf()
    listener.on_partitions_revoked = revoked.append
    consumer = cluster.consumer(group=topic_name)
    consumers.append(consumer)
    consumer.subscribe([topic_name], listener)
    run_until(lambda: polled(consumer) and consumer.assignment() and not consumer.rejoin_pending())
    consumer.poll(20, 10)
    before = len(revoked)
    assert not consumer.rejoin_pending()
    consumer._consumer._coordinator.request_rejoin()
    consumer.poll(20, 10)
    assert len(revoked) == before
    assert consumer.rejoin_pending()
    run_until(lambda: polled(consumer) and not consumer.rejoin_pending())
    assert len(revoked) > before


def test_a_static_member_that_dies_between_two_rounds_leaves_nothing_to_nobody(
    cluster: KafkaCluster, topic_name: str, consumers: list[KafkaConsumerPort]
) -> None:
    """What a static member let go of for another, in a cooperative group, is read again after it died and came back.

    Its old assignment, which it gets back without a rebalance, lacks what was to move.
    """
    cluster.ensure_topic(topic_name, 2)
    client = CLIENT | {"partition_assignment_strategy": [CooperativeStickyAssignor]}

    def member(name: str) -> KafkaConsumerPort:
        consumers.append(cluster.consumer(group=topic_name, instance_id=name, client=client))
        consumers[-1].subscribe([topic_name], Deaf())
        return consumers[-1]

    owners = die_between_two_rounds(member)
    assert {tp.partition for owner in owners for tp in owner.assignment()} == {0, 1}


def test_who_falls_out_of_a_group_while_it_joins_is_told_what_it_lost(
    cluster: KafkaCluster, kafka_broker: EmbeddedKafka, topic_name: str, consumers: list[KafkaConsumerPort]
) -> None:
    """A member of a cooperative group that is thrown out while it waits for a join has lost what it had.

    kafka-python does not tell it, and it would go on with partitions that others may have owned meanwhile.
    """
    cluster.ensure_topic(topic_name, 2)
    client = CLIENT | {"partition_assignment_strategy": [CooperativeStickyAssignor]}
    stage = RealStage(kafka_broker.bootstrap)

    def member(told: Facts) -> KafkaConsumerPort:
        consumers.append(cluster.consumer(group=topic_name, client=client))
        consumers[-1].subscribe([topic_name], told)
        return consumers[-1]

    try:
        told = fall_out_while_joining(member, BrokerGroup(stage, topic_name).expire_members)
    finally:
        stage.close()
    assert next(kind for kind, _ in told.real()) == "lost"

"""Whether a spout on a real broker has something to wait for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

if TYPE_CHECKING:
    from downspout.kafka.spout_state import Partition
    from tests.topology.broker_kafka import BrokerKafka
    from tests.topology.spout_driver import Driver


def has_joined(driver: Driver) -> bool:
    """Return whether it was told what is its own, and that is not nothing."""
    membership = driver.spout._member.membership
    told = list(membership.listener.facts)
    return bool(membership.parts) or any(fact.kind == "assigned" and fact.partitions for fact in told)


def at_rest(kafka: BrokerKafka, driver: Driver) -> bool:
    """Return whether calls will do nothing until the test does something: lets time pass, acks, or writes."""
    spout = driver.spout
    now = spout._now()
    if spout._member is None or spout.waits_for_acks():
        return True
    if kafka.faults.pending() and any(p.waits(now) for p in (spout._means.poll_patience, spout._means.commit_patience)):
        return True
    member = spout._member
    if not member.membership.settled or member.consumer.rejoin_pending() or _letters_move(kafka, driver, now):
        return False
    return _all_given_out(kafka, driver) and not _may_read(kafka, driver, now)


def _all_given_out(kafka: BrokerKafka, driver: Driver) -> bool:
    """Return whether each partition of the topics has an owner; by ``assign`` a task looks on its own timer."""
    setup = driver.spout._setup
    if not setup.joins:
        return True
    pattern = re.compile(setup.settings["pattern"] or "")
    topics = setup.settings["topics"] or [name for name in kafka.topic_names() if pattern.fullmatch(name)]
    wanted = {tp for topic in topics for tp in kafka.partitions(topic)}
    members = [member for member in kafka.live() if member.spout._setup.group == setup.group]
    return wanted == {tp for member in members for tp in member.spout._member.membership.parts}


def _letters_move(kafka: BrokerKafka, driver: Driver, now: int) -> bool:
    """Return whether the next calls will send dead letters, or hear of those that are on their way."""
    giving_up = driver.spout._giving_up
    on_time = not (giving_up.out and kafka.acks_after_s)
    return giving_up.busy and on_time and giving_up._not_before <= now


def _held_up(part: Partition, now: int) -> bool:
    """Return whether the watch keeps in what waits until acks come, and that is the lowest that is to leave."""
    retry = part.ledger.earliest_ready_retry(now)
    return part.held_up and part.has_waiting and (retry is None or retry >= part.waiting[part.at].offset)


def _may_read(kafka: BrokerKafka, driver: Driver, now: int) -> bool:
    """Return whether there is a record that the spout would read now and has not."""
    spout = driver.spout
    limit = spout._settings["uncommitted_max"]
    open_parts = {tp: part for tp, part in spout._member.membership.parts.items() if part.ledger.may_poll(limit, now)}
    open_parts = {tp: part for tp, part in open_parts.items() if not _held_up(part, now)}
    if any(part.has_waiting or part.ledger.earliest_ready_retry(now) is not None for part in open_parts.values()):
        return True

    def behind(tp: TopicPartition, end: int) -> bool:
        stop = open_parts[tp].stop
        return bool(spout._member.consumer.position(tp) < (end if stop is None else min(stop, end)))

    return any(behind(tp, end) for tp, end in kafka.ends(open_parts).items())

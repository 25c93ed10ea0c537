"""Whether a spout on a real broker has something to wait for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from downspout.spout import SessionState

if TYPE_CHECKING:
    from downspout.spout import Partition
    from tests.spout.broker_kafka import BrokerKafka
    from tests.spout.spout_driver import Driver


def has_joined(driver: Driver) -> bool:
    """Return whether it was told what is its own, and that is not nothing."""
    assignment = driver.session.assignment
    told = list(assignment.listener.facts)
    return bool(assignment.parts) or any(fact.kind == "assigned" and fact.partitions for fact in told)


def at_rest(kafka: BrokerKafka, driver: Driver) -> bool:
    """Return whether calls will do nothing until the test does something: lets time pass, acks, or writes."""
    spout = driver.spout
    now = spout.services.now()
    if spout.session is None:
        return True
    member = spout.session
    if member.state is SessionState.DRAINING or any(part.isolation.held_up for part in member.parts):
        return not _letters_move(kafka, driver, now)
    if kafka.faults.pending() and any(p.waits(now) for p in (spout.services.poll_gate, spout.services.commit_gate)):
        return True
    if not member.assignment.complete or member.consumer.rejoin_pending() or _letters_move(kafka, driver, now):
        return False
    return _all_given_out(kafka, driver) and not _may_read(kafka, driver, now)


def _all_given_out(kafka: BrokerKafka, driver: Driver) -> bool:
    """Return whether each partition of the topics has an owner; by ``assign`` a task looks on its own timer."""
    setup = driver.spout.services.setup
    if not setup.joins:
        return True
    pattern = re.compile(setup.settings["pattern"] or "")
    topics = setup.settings["topics"] or [name for name in kafka.topic_names() if pattern.fullmatch(name)]
    wanted = {tp for topic in topics for tp in kafka.partitions(topic)}
    members = [member for member in kafka.live() if member.spout.services.setup.group == setup.group]
    return wanted == {tp for member in members for tp in member.session.assignment.parts}


def _letters_move(kafka: BrokerKafka, driver: Driver, now: int) -> bool:
    """Return whether the next calls will send dead letters, or hear of those that are on their way."""
    dead_lettering = driver.spout.services.dead_lettering
    on_time = not (dead_lettering.out and kafka.acks_after_s)
    return dead_lettering.busy and on_time and dead_lettering.not_before <= now


def _held_up(part: Partition, now: int) -> bool:
    """Return whether crash isolation keeps in what waits until acks come, and that is the lowest that is to leave."""
    retry = part.ledger.earliest_ready_retry(now)
    waiting = part.cursor.next_waiting
    return part.isolation.held_up and waiting is not None and (retry is None or retry >= waiting)


def _may_read(kafka: BrokerKafka, driver: Driver, now: int) -> bool:
    """Return whether there is a record that the spout would read now and has not."""
    spout = driver.spout
    limit = spout.services.setup.settings["uncommitted_max"]
    open_parts = {tp: part for tp, part in driver.session.assignment.parts.items() if part.ledger.may_poll(limit, now)}
    open_parts = {tp: part for tp, part in open_parts.items() if not _held_up(part, now)}
    for part in open_parts.values():
        if part.cursor.has_waiting or part.ledger.earliest_ready_retry(now) is not None:
            return True

    def behind(tp: TopicPartition, end: int) -> bool:
        stop = open_parts[tp].cursor.stop
        return bool(driver.session.consumer.position(tp) < (end if stop is None else min(stop, end)))

    return any(behind(tp, end) for tp, end in kafka.ends(open_parts).items())

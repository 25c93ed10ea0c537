"""Processes killed by some records, and the content of their commits."""

from __future__ import annotations

from typing import Any

from kafka.structs import TopicPartition

from downspout.ledger import Isolation, decode
from tests.spout.spout_driver import GROUP, TOPIC, Driver, Kafka, offset_of

LETTERS = f"{GROUP}.dead-letters"
SINGLE = 5
"""After so many deaths at one offset a record is out alone: twice free, then in windows of 1,000, 125 and 15."""
IN_VAIN_MAX = 12
"""After so many turns without a tuple there is nothing left to process."""


def told(kafka: Kafka, partition: int = 0) -> Isolation:
    meta = kafka.committed(GROUP)[TopicPartition(TOPIC, partition)]
    return decode(meta.offset, meta.metadata, topic_id=kafka.topic_id(TOPIC)).isolation


def die(kafka: Kafka, times: int) -> None:
    """Let so many processes read, and die before anything is acked."""
    for _ in range(times):
        driver = Driver(kafka)
        driver.run()
        driver.die()


def live(kafka: Kafka, poison: set[int], done: set[int], **settings: Any) -> Driver | None:
    """Run a process that dies when a poison record comes out; return None then, else the process at its end.

    Words come late: up to 20 records are out before the first is acked.
    """
    driver = Driver(kafka, retries_max=2, **settings)
    acked = in_vain = 0
    while in_vain < IN_VAIN_MAX:
        in_vain = 0 if driver.run(1) else in_vain + 1
        out = driver.emitted[acked:]
        if any(offset_of(tup_id) in poison for tup_id, _ in out):
            driver.die()
            return None
        for tup_id, _ in out:
            driver.spout.ack(tup_id)
            done.add(offset_of(tup_id))
        acked = len(driver.emitted)
    driver.commit()
    return driver


def deaths(kafka: Kafka, poison: set[int], done: set[int], **settings: Any) -> tuple[int, Driver]:
    """Start processes until one does not die; return how many died, and that one."""
    for count in range(200):
        if (driver := live(kafka, poison, done, **settings)) is not None:
            return count, driver
    raise AssertionError("still dying after 200 starts")

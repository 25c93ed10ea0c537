"""Whether the installed client has all that the patches need; asked for each consumer and producer that is made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from downspout.errors import BrokerError
from downspout.kafka.patches import (
    asked_positions,
    bootstrap_draws,
    commits_one_by_one,
    costly_send,
    deadly_silence,
    dropped_properties,
    endless_transactions,
    errors_once,
    fatal_refusals,
    fetches_alike,
    joins_across_polls,
    leaving_by_kind,
    lost_in_joining,
    lost_producer_id,
    lost_seeks,
    parked_records,
    questions_behind_fetches,
    record_objects,
    returning_leader,
    returning_member,
    silent_aborts,
    silent_expiry,
    split_batches,
    stale_assignment,
    stuck_close,
    unbounded_questions,
    unbounded_unpacking,
    unheard_fencing,
    unknown_leaders,
    unseen_connections,
    unseen_silence,
    unstable_commits,
    untimed_fetches,
)
from downspout.kafka.patches.parts import absent, unknown_client

PATCHES = (
    asked_positions,
    bootstrap_draws,
    commits_one_by_one,
    costly_send,
    deadly_silence,
    dropped_properties,
    endless_transactions,
    errors_once,
    fetches_alike,
    joins_across_polls,
    leaving_by_kind,
    lost_in_joining,
    lost_seeks,
    parked_records,
    questions_behind_fetches,
    record_objects,
    returning_leader,
    returning_member,
    silent_aborts,
    silent_expiry,
    split_batches,
    stale_assignment,
    stuck_close,
    unbounded_questions,
    unbounded_unpacking,
    unheard_fencing,
    unknown_leaders,
    unseen_connections,
    unseen_silence,
    untimed_fetches,
    unstable_commits,
)
CONSUMER = {path: kind for patch in PATCHES for path, kind in getattr(patch, "CONSUMER", {}).items()}
"""What a consumer must have."""
PRODUCER = {path: kind for patch in PATCHES for path, kind in getattr(patch, "PRODUCER", {}).items()}
"""What a producer must have, and a batch of its."""


def check_consumer(consumer: Any) -> None:
    """Raise if the installed kafka-python lacks one of the private parts that a consumer needs; close it then.

    Raises:
        BrokerError: it does; the error names the part.
    """
    if path := absent(consumer, CONSUMER) or absent(unbounded_unpacking, unbounded_unpacking.CLASSES):
        consumer.close(autocommit=False, timeout_ms=0)
        raise unknown_client(path)


def check_producer(producer: Any) -> None:
    """Raise if the installed kafka-python lacks one of the private parts that a producer needs; close it then."""
    probe = SimpleNamespace(producer=producer, batch=costly_send.empty_batch())
    path = absent(probe, PRODUCER)
    if path is None and producer.config["enable_idempotence"]:
        path = absent(probe, deadly_silence.IDEMPOTENT | fatal_refusals.IDEMPOTENT | lost_producer_id.IDEMPOTENT)
    if path is None and producer.config["transactional_id"]:
        path = absent(probe, endless_transactions.TRANSACTIONAL)
    if path:
        producer.close(timeout=0)
        raise unknown_client(path)
    if (found := costly_send.format_of(producer)) != costly_send.FORMAT:
        producer.close(timeout=0)
        raise BrokerError(f"the brokers take records of format {found} only", cure="brokers of Kafka 0.11 or newer")

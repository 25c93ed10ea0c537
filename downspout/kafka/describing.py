"""Describe groups, logs, the age of a group's commits, and the transactions that block commits.

A topic or partition that cannot be described (deleted, no leader, no permission) has a ``problem``; the others are
complete.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kafka import errors
from kafka.admin import KafkaAdminClient, OffsetSpec

from downspout.kafka.port import (
    ConsumerPort,
    GroupDescription,
    GroupMember,
    LogState,
    OpenTransaction,
    TopicPartition,
    TopicState,
)
from downspout.kafka.scan import scan

NO_LEADER = "has no leader: its brokers are down"
MISSING = "does not exist: it was deleted, or the name is misspelt"
WORDS: dict[type[BaseException], str] = {
    errors.UnknownTopicOrPartitionError: MISSING,
    errors.InvalidTopicError: "is not a valid topic name",
    errors.TopicAuthorizationFailedError: "no permission to see it: this needs Describe on the topic",
    errors.LeaderNotAvailableError: NO_LEADER,
    errors.ReplicaNotAvailableError: NO_LEADER,
}
PASSING = (errors.LeaderNotAvailableError, errors.ReplicaNotAvailableError)
"""Errors of a topic whose other partitions may have leaders."""
LOOKED_AT = (("earliest", "read_uncommitted"), ("latest", "read_uncommitted"), ("latest", "read_committed"))


def problem_of(error: BaseException) -> str:
    """Describe the problem of a topic or a partition.

    >>> problem_of(errors.TopicAuthorizationFailedError("orders"))
    'no permission to see it: this needs Describe on the topic'
    >>> problem_of(errors.KafkaTimeoutError("…"))
    'cannot be looked at: KafkaTimeoutError'
    """
    return WORDS.get(type(error)) or f"cannot be looked at: {type(error).__name__}"


def describe_logs(admin: KafkaAdminClient, topics: Collection[str]) -> dict[str, TopicState]:
    """Return the beginning and end of topics' logs, with three requests per broker."""
    described = {each["name"]: each for each in admin.describe_topics(sorted(topics))} if topics else {}
    led = [
        TopicPartition(name, part["partition_index"])
        for name, each in described.items()
        for part in each["partitions"]
        if part["leader_id"] >= 0
    ]
    places = [_places(admin, led, spec, isolation) for spec, isolation in LOOKED_AT]
    return {name: _topic_state(described[name], places) for name in sorted(described)}


def _topic_state(described: Mapping[str, Any], places: list[dict[TopicPartition, int | str]]) -> TopicState:
    error = errors.for_code(described["error_code"])
    if error is not errors.NoError and error not in PASSING:
        return TopicState("", {}, problem_of(error()))
    name, topic_id = described["name"], described.get("topic_id")
    partitions = {
        part["partition_index"]: _log_state(
            [place.get(TopicPartition(name, part["partition_index"])) for place in places]
        )
        for part in described["partitions"]
    }
    known = uuid.UUID(str(topic_id)) if topic_id else uuid.UUID(int=0)
    identity = base64.urlsafe_b64encode(known.bytes).decode().rstrip("=") if known.int else ""
    return TopicState(identity, dict(sorted(partitions.items())), "")


def _log_state(found: list[int | str | None]) -> LogState:
    """Combine a log's three offsets into its state; None: it has no leader, a string: its problem."""
    wrong = next((each for each in found if not isinstance(each, int)), 0)
    if isinstance(wrong, int):
        begin, high, stable = found
        assert isinstance(begin, int)
        assert isinstance(high, int)
        assert isinstance(stable, int)
        # The log may have grown between the requests; the stable offset never exceeds the high watermark.
        return LogState(begin, max(high, stable), stable, "")
    return LogState(None, None, None, wrong or NO_LEADER)


def _places(
    admin: KafkaAdminClient, partitions: list[TopicPartition], spec: str, isolation: str
) -> dict[TopicPartition, int | str]:
    """Return one offset of each log, or its problem. The client raises only the first error: then ask one by one."""
    wanted = OffsetSpec.EARLIEST if spec == "earliest" else OffsetSpec.LATEST

    def ask(some: list[TopicPartition]) -> dict[TopicPartition, int | str]:
        found = admin.list_partition_offsets(dict.fromkeys(some, wanted), isolation_level=isolation)
        return {tp: place.offset for tp, place in found.items()}

    if not partitions:
        return {}
    try:
        return ask(partitions)
    except errors.KafkaError as error:
        if len(partitions) == 1:
            return {partitions[0]: problem_of(error)}
    found: dict[TopicPartition, int | str] = {}
    for tp in partitions:
        try:
            found |= ask([tp])
        except errors.KafkaError as error:
            found[tp] = problem_of(error)
    return found


def group_description(found: Mapping[str, Any], coordinator: str) -> GroupDescription:
    """Convert an admin client's description of a group."""
    members = [
        GroupMember(
            member["group_instance_id"] or member["member_id"],
            member["client_id"],
            member["client_host"].lstrip("/"),
            _assigned(member["member_assignment"]),
        )
        for member in found["members"]
    ]
    return GroupDescription(found["group_state"], coordinator, sorted(members))


def _assigned(assignment: Any) -> tuple[TopicPartition, ...]:
    """Return a member's partitions; none while the group rebalances, or if it uses another protocol."""
    if not isinstance(assignment, Mapping):
        return ()
    topics = assignment.get("assigned_partitions") or ()
    return tuple(sorted(TopicPartition(each["topic"], number) for each in topics for number in each["partitions"]))


def coordinator_of(cluster: Any, group: str) -> str:
    """Return the address of a group's coordinator as the client knows it; empty if it does not."""
    broker: Callable[[Any], Any] = cluster.broker_metadata
    node = cluster.get_coordinator(group)
    found = None if node is None else broker(node)
    return "" if found is None else f"{found.host}:{found.port} (node {found.node_id})"


# --- The topic of commits ---

OFFSETS_TOPIC = "__consumer_offsets"
AGES_IDLE_POLLS = 50  # 10 s
_COMMIT_KEYS = (0, 1)  # Key versions of commits; others belong to groups


def commit_ages(consumer: ConsumerPort, group: str, now: float, within_s: float) -> dict[TopicPartition, float]:
    """Return the ages in seconds, at ``now``, of a group's commits younger than ``within_s``.

    Kafka's protocol does not tell them. Brokers write each commit as a record of ``__consumer_offsets``, those of one
    group to one partition; this reads its records of the last ``within_s``.

    Raises:
        KafkaError: the broker does not answer, or the topic may not be read.
    """
    count = len(consumer.partitions_for(OFFSETS_TOPIC))
    if not count:
        return {}
    tp = TopicPartition(OFFSETS_TOPIC, partition_of_group(group, count))
    start = consumer.offsets_for_times({tp: int((now - within_s) * 1000)})[tp]
    if start is None:
        return {}
    end = consumer.end_offsets([tp])[tp]
    consumer.assign([tp])
    found: dict[TopicPartition, float] = {}
    for records in scan(consumer, tp, start, end, idle_polls=AGES_IDLE_POLLS):
        for record in records:
            key = _commit_key(record.key or b"")
            if key is not None and key[0] == group and record.value is not None:
                found[key[1]] = max(0.0, now - record.timestamp / 1000)
    return {partition: age for partition, age in found.items() if age <= within_s}


def partition_of_group(group: str, count: int) -> int:
    """Return the partition of a group's commits, by Java's ``String.hashCode``.

    >>> partition_of_group("kafka-demo", 50), partition_of_group("copies", 50)
    (6, 23)
    >>> partition_of_group("polygenelubricants", 50)  # -2^31 has no absolute value: Kafka takes 0
    0
    """
    value = 0
    units = group.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (value * 31 + (high << 8) + low) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >> 31 else value
    return 0 if value == 1 << 31 else abs(signed) % count


def _commit_key(key: bytes) -> tuple[str, TopicPartition] | None:
    """Parse the key of a commit: its group and partition. None: the key of another record.

    >>> _commit_key(b"\\x00\\x01\\x00\\x01g\\x00\\x02ab\\x00\\x00\\x00\\x07")
    ('g', TopicPartition(topic='ab', partition=7))
    """
    if int.from_bytes(key[:2], "big") not in _COMMIT_KEYS or len(key) < 2:
        return None
    group, at = _text(key, 2)
    topic, at = _text(key, at)
    return group, TopicPartition(topic, int.from_bytes(key[at : at + 4], "big"))


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = at + 2 + int.from_bytes(data[at : at + 2], "big")
    return data[at + 2 : end].decode("utf-8", "replace"), end


AT_WORK = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""States in which the coordinator will still end the transaction."""


def open_transactions(admin: Any, group: str) -> list[OpenTransaction]:
    """Return the transactions that are open on the partition of a group's commits.

    Raises:
        KafkaError: no permission, or no answer.
    """
    (described,) = admin.describe_topics([OFFSETS_TOPIC])
    if (error := errors.for_code(described["error_code"])) is not errors.NoError:
        raise error(OFFSETS_TOPIC)
    home = TopicPartition(OFFSETS_TOPIC, partition_of_group(group, len(described["partitions"])))

    def begun() -> dict[int, int]:
        (state,) = admin.describe_producers([home]).values()
        starts = {each.producer_id: each.current_transaction_start_offset for each in state.active_producers}
        return {producer: start for producer, start in starts.items() if start >= 0}

    before = begun()
    if not before:
        return []
    listed = [each for some in admin.list_transactions(producer_id_filters=list(before)).values() for each in some]
    found = admin.describe_transactions([each.transactional_id for each in listed])
    # A transaction that ended between the requests would look lost. Its markers are written before its coordinator
    # considers it ended, so it is no longer open now.
    still = begun()
    return [
        OpenTransaction(name, each.transaction_timeout_ms, is_lost=each.state not in AT_WORK)
        for name, each in sorted(found.items())
        if before.get(each.producer_id) == still.get(each.producer_id, -1)
    ]

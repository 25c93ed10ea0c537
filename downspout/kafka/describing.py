"""What an admin client can tell of consumer groups and logs, topic by topic and partition by partition.

One that cannot be told of (deleted, without a leader, no right) says so in its ``problem``, and the others are there.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kafka import errors
from kafka.admin import KafkaAdminClient, OffsetSpec

from downspout.kafka.port import GroupDescription, GroupMember, LogState, TopicPartition, TopicState

NO_LEADER = "has no leader: its brokers are down"
MISSING = "does not exist: it was deleted, or the name is misspelt"
WORDS: dict[type[BaseException], str] = {
    errors.UnknownTopicOrPartitionError: MISSING,
    errors.InvalidTopicError: "is no name of a topic",
    errors.TopicAuthorizationFailedError: "no right to see it: it takes Describe on the topic",
    errors.LeaderNotAvailableError: NO_LEADER,
    errors.ReplicaNotAvailableError: NO_LEADER,
}
PASSING = (errors.LeaderNotAvailableError, errors.ReplicaNotAvailableError)
"""Errors of a partition, or of a topic with all of its partitions, that may have others whose leaders live."""
LOOKED_AT = (("earliest", "read_uncommitted"), ("latest", "read_uncommitted"), ("latest", "read_committed"))


def problem_of(error: BaseException) -> str:
    """Say what is wrong with a topic or a partition.

    >>> problem_of(errors.TopicAuthorizationFailedError("orders"))
    'no right to see it: it takes Describe on the topic'
    >>> problem_of(errors.KafkaTimeoutError("…"))
    'cannot be looked at: KafkaTimeoutError'
    """
    return WORDS.get(type(error)) or f"cannot be looked at: {type(error).__name__}"


def describe_logs(admin: KafkaAdminClient, topics: Collection[str]) -> dict[str, TopicState]:
    """Return where the logs of topics begin and end: one request per broker for each of the three places."""
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
    """Return a log's state of its three places; None of them: it has no leader, a text: what is wrong."""
    wrong = next((each for each in found if not isinstance(each, int)), 0)
    if isinstance(wrong, int):
        begin, high, stable = found
        assert isinstance(begin, int)
        assert isinstance(high, int)
        assert isinstance(stable, int)
        # They were asked for one after the other: the log may have grown meanwhile, and what is stable is never beyond.
        return LogState(begin, max(high, stable), stable, "")
    return LogState(None, None, None, wrong or NO_LEADER)


def _places(
    admin: KafkaAdminClient, partitions: list[TopicPartition], spec: str, isolation: str
) -> dict[TopicPartition, int | str]:
    """Return one place of each log, or what is wrong. The client raises the first error alone: then one by one."""
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
    """Return what an admin client's description of a group says."""
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
    """Return what is assigned to a member: nothing while the group rebalances, or where it speaks another protocol."""
    if not isinstance(assignment, Mapping):
        return ()
    topics = assignment.get("assigned_partitions") or ()
    return tuple(sorted(TopicPartition(each["topic"], number) for each in topics for number in each["partitions"]))


def coordinator_of(cluster: Any, group: str) -> str:
    """Name the broker that a client knows as a group's coordinator."""
    broker: Callable[[Any], Any] = cluster.broker_metadata
    node = cluster.get_coordinator(group)
    found = None if node is None else broker(node)
    return "" if found is None else f"{found.host}:{found.port} (node {found.node_id})"

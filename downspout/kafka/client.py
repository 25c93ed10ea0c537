"""Real brokers, with kafka-python 3: how its clients are made, and what is done about topics.

The properties below are ours wherever they differ from kafka-python's; a user's (``kafka.client.…``) come before both.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import kafka
from kafka import errors
from kafka.admin import KafkaAdminClient
from kafka.net.compat import KafkaNetClient

from downspout.errors import BrokerError, ConfigError, coordinates
from downspout.kafka import noise
from downspout.kafka.address import START, parse_bootstrap, troubles
from downspout.kafka.consumer import KafkaConsumerPort
from downspout.kafka.patience import cure_of
from downspout.kafka.port import Cluster, OffsetAndMetadata, TopicPartition
from downspout.kafka.producer import KafkaProducerPort

TOPIC_READY_S = 10
TOPIC_LOOK_S = 0.01
COORDINATOR_READY_S = 10
COORDINATOR_LOOK_S = 0.1
RECORD_BYTES_MAX = 16 * 1024 * 1024
CONNECTION = {
    "bootstrap_timeout_ms": 5000,
    "reconnect_backoff_max_ms": 2000,  # the default of 30 s would let a broker that is back wait for us that long
}
CONSUMER = {
    "enable_auto_commit": False,
    "isolation_level": "read_committed",
    "allow_auto_create_topics": False,
    "metadata_max_age_ms": 30_000,  # how soon new topics and partitions are seen
    "fetch_max_bytes": RECORD_BYTES_MAX,
    "max_partition_fetch_bytes": 2 * 1024 * 1024,  # a larger record comes all the same, alone
    "metrics_enabled": False,
}
PRODUCER = {
    "acks": "all",
    "enable_idempotence": True,
    "max_request_size": RECORD_BYTES_MAX,
    "max_block_ms": 10_000,
    "linger_ms": 5,
    "batch_size": 128 * 1024,
    "metrics_enabled": False,
}

CONNECTING = ("security_", "ssl_", "sasl_", "proxy_", "socks5_", "client_dns_", "socket_options", "reconnect_backoff_")
"""How the names of properties begin that say how to connect; consumers, producers and administrators share them."""

noise.leave_out()


def connection_properties(client: Mapping[str, Any]) -> dict[str, Any]:
    """Return those properties of a client that say how to connect.

    >>> connection_properties({"security_protocol": "SSL", "fetch_max_bytes": 1, "ssl_cafile": "ca.pem"})
    {'security_protocol': 'SSL', 'ssl_cafile': 'ca.pem'}
    """
    known = KafkaAdminClient.DEFAULT_CONFIG
    return {name: value for name, value in client.items() if name.startswith(CONNECTING) and name in known}


def _pass_over_the_dead(manager: Any) -> None:
    """Let a client that begins ask the addresses of its bootstrap list that have not refused it a moment ago.

    By itself it draws one by chance, and again after a failure, and waits for what it draws, longer after each failure.
    With half of the list dead, one start in thirty used up its time by five such draws, without a look at the rest.
    """
    known = manager.cluster.bootstrap_brokers

    def bootstrap_brokers() -> list[Any]:
        return [broker for broker in known() if not manager.connection_delay(broker.node_id)] or known()

    manager.cluster.bootstrap_brokers = bootstrap_brokers


class KafkaCluster:
    """Real brokers behind a bootstrap string; a :class:`~downspout.kafka.port.Cluster`.

    Args:
        bootstrap: ``host:port,host:port``.
        client: kafka-python properties for every connection (security, above all).

    Raises:
        BrokerError: no address is answered (asked for at most 3 s each).
        ConfigError: ``bootstrap`` is malformed.
    """

    def __init__(self, bootstrap: str, client: Mapping[str, Any] | None = None) -> None:
        self.bootstrap = bootstrap
        self._addresses = parse_bootstrap(bootstrap)
        self._client = {**CONNECTION, **(client or {})}
        self._check(self._client)

    def _check(self, client: Mapping[str, Any]) -> None:
        """Raise unless one address answers: a client would say so only after its time-out, and not why."""
        if found := troubles(self._addresses, client):
            cures = [trouble.cure for trouble in found if trouble.cure != START]
            what = "; ".join(trouble.what for trouble in found)
            raise BrokerError(f"No Kafka at {self.bootstrap}: {what}", cure=(cures or [START])[0])

    @contextmanager
    def _connecting(self, client: Mapping[str, Any]) -> Iterator[Callable[..., Any]]:
        """Give a client factory; if the client cannot be made, end its thread and say what is wrong."""
        made: list[Any] = []

        def factory(**properties: Any) -> Any:
            made.append(KafkaNetClient(**properties))
            _pass_over_the_dead(made[-1]._manager)
            return made[-1]

        self._check(client)
        try:
            yield factory
        except errors.KafkaConfigurationError as error:
            raise ConfigError(f"kafka.client: {error}", cure="kafka-python's names, with underscores") from None
        except BaseException as error:
            for net in made:
                net.close()
            if isinstance(error, errors.KafkaTimeoutError):
                raise BrokerError(
                    f"Kafka at {self.bootstrap} cannot be used: {error}",
                    cure="look at security_protocol and at the broker's log",
                ) from error
            raise

    def consumer(
        self,
        *,
        group: str | None,
        instance_id: str | None = None,
        client: Mapping[str, Any] | None = None,
        auto_commit_ms: int | None = None,
        columns: bool = False,
    ) -> KafkaConsumerPort:
        """Return a consumer that commits only when told, and with ``auto_commit_ms`` also by itself.

        Raises:
            BrokerError: no broker answers, or the installed kafka-python is another one than we know.
            ConfigError: a property that kafka-python does not have, or that is decided here.
        """
        properties = {**self._client, **CONSUMER, **(client or {})}
        if properties["enable_auto_commit"]:
            raise ConfigError("kafka.client.enable_auto_commit cannot be set", cure="remove it")
        if auto_commit_ms is not None:
            properties |= {"enable_auto_commit": True, "auto_commit_interval_ms": auto_commit_ms}
        starts_at_beginning = properties.setdefault("auto_offset_reset", None) is None
        if starts_at_beginning:
            properties["auto_offset_reset"] = "none"
        if (session_ms := properties.get("session_timeout_ms")) is not None:
            properties.setdefault("heartbeat_interval_ms", max(min(3000, session_ms // 3), 1))
        with self._connecting(properties) as factory:
            made = kafka.KafkaConsumer(
                bootstrap_servers=self.bootstrap.split(","),
                group_id=group,
                group_instance_id=instance_id if group is not None else None,
                kafka_client=factory,
                **properties,
            )
        return KafkaConsumerPort(made, starts_at_beginning, columns)

    def producer(self, *, client: Mapping[str, Any] | None = None) -> KafkaProducerPort:
        """Return an idempotent producer with acks=all.

        Raises:
            BrokerError: no broker answers.
            ConfigError: a property that kafka-python does not have.
        """
        properties = {**self._client, **PRODUCER, **(client or {})}

        def make() -> Any:
            with self._connecting(properties) as factory:
                return kafka.KafkaProducer(
                    bootstrap_servers=self.bootstrap.split(","),
                    kafka_client=factory,
                    **properties,
                )

        return KafkaProducerPort(make)

    @contextmanager
    def _admin(self) -> Iterator[KafkaAdminClient]:
        with self._connecting(self._client) as factory:
            admin = KafkaAdminClient(
                bootstrap_servers=self.bootstrap.split(","),
                kafka_client=factory,
                request_timeout_ms=15_000,
                **self._client,
            )
        try:
            yield admin
        finally:
            admin.close()

    def ensure_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> bool:
        """Create the topic where it does not exist and wait until it can be used; return whether it was created.

        Raises:
            BrokerError: the broker refuses (a bad name or setting, no permission).
        """
        wanted = {"num_partitions": partitions, "configs": dict(config or {})}
        with self._admin() as admin:
            try:
                admin.create_topics({topic: wanted})
                _wait_for_leaders(admin, topic)
            except errors.TopicAlreadyExistsError:
                return False
            except errors.KafkaError as error:
                raise BrokerError(
                    f"{topic} cannot be created: {_brief(error)}", cure=cure_of(error, "another name or setting")
                ) from error
        return True

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move the start of a partition's log to ``before``: the records below are gone for good.

        Raises:
            BrokerError: the broker refuses (no such partition, no permission, beyond the end).
        """
        with self._admin() as admin:
            try:
                admin.delete_records({TopicPartition(topic, partition): before})
            except errors.KafkaError as error:
                place = coordinates(topic, partition, before)
                raise BrokerError(f"the records below {place} cannot be deleted: {_brief(error)}") from error

    def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return all that a consumer group has committed; empty where there is no such group.

        Raises:
            BrokerError: the broker refuses (no permission), or has no coordinator for the group after 10 s.
        """
        found = self._ask_of_group(group, lambda admin: admin.list_group_offsets({group: None})[group])
        return {tp: entry for tp, entry in (found or {}).items() if entry.offset >= 0}

    def group_members(self, group: str) -> list[str]:
        """Return the names of a group's live members: static ones by their instance, others by their id.

        Raises:
            BrokerError: the broker refuses (no permission), or has no coordinator for the group after 10 s.
        """
        found = self._ask_of_group(group, lambda admin: _described(admin, group))
        members = found["members"] if found else ()
        return sorted(member["group_instance_id"] or member["member_id"] for member in members)

    def _ask_of_group(self, group: str, question: Callable[[KafkaAdminClient], Any]) -> Any:
        """Ask until the group has a coordinator: the first group of a cluster has none for a moment.

        Each time with a new client: one that has asked who it is would go on asking that node, even if it is dead.
        """
        deadline = time.monotonic() + COORDINATOR_READY_S
        while True:
            try:
                with self._admin() as admin:
                    return question(admin)
            except errors.GroupIdNotFoundError:
                return None
            except errors.KafkaError as error:
                if not error.retriable or time.monotonic() >= deadline:
                    cure = cure_of(error, "look at the broker's log")
                    raise BrokerError(f"group {group} cannot be looked at: {_brief(error)}", cure=cure) from error
            time.sleep(COORDINATOR_LOOK_S)

    def delete_topic(self, topic: str) -> bool:
        """Delete a topic with all its records; return whether there was one."""
        with self._admin() as admin:
            try:
                admin.delete_topics([topic])
            except errors.UnknownTopicOrPartitionError:
                return False
            except errors.KafkaError as error:
                raise BrokerError(f"{topic} cannot be deleted: {_brief(error)}") from error
        return True

    def delete_groups(self, groups: Collection[str]) -> list[str]:
        """Delete consumer groups with their commits; return those that have members still, and so stay."""
        with self._admin() as admin:
            try:
                found = admin.delete_groups(list(groups)) if groups else {}
            except errors.KafkaError as error:
                raise BrokerError(f"{', '.join(groups)} cannot be deleted: {_brief(error)}") from error
        left = [group for group, answer in found.items() if answer == "NonEmptyGroupError"]
        for group, answer in found.items():
            if answer not in ("OK", "NonEmptyGroupError", "GroupIdNotFoundError"):
                raise BrokerError(f"group {group} cannot be deleted: {answer}")
        return left

    def leaders(self, topic: str) -> dict[int, int]:
        """Return the node that leads each partition of a topic; -1: none does at the moment. Empty: no such topic.

        Raises:
            BrokerError: the brokers refuse, or none answers in time.
        """
        with self._admin() as admin:
            try:
                (found,) = admin.describe_topics([topic])
            except errors.KafkaError as error:
                raise BrokerError(f"{topic} cannot be looked at: {_brief(error)}") from error
        return {part["partition_index"]: part["leader_id"] for part in found["partitions"]}

    def topics(self) -> dict[str, int]:
        """Return all topics that are not Kafka's own, sorted, with their numbers of partitions."""
        with self._admin() as admin:
            found = admin.describe_topics()
        return {t["name"]: len(t["partitions"]) for t in sorted(found, key=lambda t: t["name"]) if not t["is_internal"]}


def _wait_for_leaders(admin: KafkaAdminClient, topic: str) -> None:
    """Wait until a new topic can be used. The client's own wait looks every 0.1 s, and a run may be waiting for us.

    Raises:
        KafkaTimeoutError: it cannot after 10 s.
    """
    deadline = time.monotonic() + TOPIC_READY_S
    while True:
        with suppress(errors.RetriableError):
            (described,) = admin.describe_topics([topic])
            partitions = described["partitions"]
            if partitions and not any(part["error_code"] or part["leader_id"] < 0 for part in partitions):
                return
        if time.monotonic() >= deadline:
            raise errors.KafkaTimeoutError(f"topic {topic} is created, but has no leader after {TOPIC_READY_S} s")
        time.sleep(TOPIC_LOOK_S)


def _described(admin: KafkaAdminClient, group: str) -> Any:
    """Return what a group is. An error is in the client's answer as text: no right to see members is not "none".

    Raises:
        KafkaError: the broker's word.
    """
    found = admin.describe_groups([group])[group]
    if text := found["error"]:
        code = re.match(r"\[Error (\d+)\]", text)
        raise (errors.for_code(int(code[1])) if code else errors.KafkaError)(text)
    return found


def _brief(error: Exception) -> str:
    """Return what an error is, without the whole request and answer that kafka-python puts into its text.

    >>> _brief(errors.InvalidTopicError("Request ... failed with response 'error_message='Topic name is illegal''"))
    'InvalidTopicError (Topic name is illegal)'
    """
    name, text = type(error).__name__, str(error)
    said = re.search(r"error_message='([^']+)'", text)
    detail = said[1] if said else text if "Request" not in text else getattr(error, "description", "")
    return f"{name} ({detail[:300]})" if detail else name


def _conforms(cluster: KafkaCluster) -> Cluster:
    """Let the type checker compare the class with its port."""
    return cluster

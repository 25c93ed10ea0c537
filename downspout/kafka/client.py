"""The cluster port on real brokers, by kafka-python's clients.

The properties below override kafka-python's defaults; a user's (``kafka.client.…``) override both.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import kafka
from kafka import errors
from kafka.admin import KafkaAdminClient, MemberToRemove
from kafka.net.compat import KafkaNetClient

from downspout.errors import BrokerError, ConfigError, SilentBrokersError, coordinates
from downspout.kafka import log_filters
from downspout.kafka.address import START, Address, ask_all, parse_bootstrap
from downspout.kafka.client_values import client_values, producer_properties
from downspout.kafka.consumer import KafkaConsumerPort
from downspout.kafka.describing import commit_ages, coordinator_of, describe_logs, group_description, open_transactions
from downspout.kafka.partitioners import Choose, make_partitioner
from downspout.kafka.patches.connecting import ConnectionWatch, prefer_brokers_that_answer
from downspout.kafka.port import (
    Cluster,
    GroupDescription,
    OffsetAndMetadata,
    OpenTransaction,
    TopicPartition,
    TopicState,
)
from downspout.kafka.producer import KafkaProducerPort, KafkaTransactionalPort
from downspout.kafka.retry_gate import cure_of, describe

ERROR_S_MAX = 10  # How long a question is repeated while its error may pass
ERROR_POLL_S = 0.1
TOPIC_READY_S = 10
TOPIC_POLL_S = 0.01
RECORD_BYTES_MAX = 16 * 1024 * 1024
CONNECTION = {
    "bootstrap_timeout_ms": 5000,
    "reconnect_backoff_max_ms": 2000,  # by default, reconnecting to a broker that is back takes up to 30 s
}
SETUP = {"socket_connection_setup_timeout_ms": 3000, "socket_connection_setup_timeout_max_ms": 10_000}
"""Time limit of a connection, doubled after each failure; by default a silent broker costs 10 s to 30 s. Passed to the
network client, since consumers and producers have no such property."""
CONSUMER = {
    "enable_auto_commit": False,
    "isolation_level": "read_committed",
    "allow_auto_create_topics": False,
    "metadata_max_age_ms": 30_000,  # delay until new topics and partitions are seen
    "fetch_max_bytes": RECORD_BYTES_MAX,
    "max_partition_fetch_bytes": 2 * 1024 * 1024,  # a larger record is still returned, alone
    "metrics_enabled": False,
}
PRODUCER = {
    "max_request_size": RECORD_BYTES_MAX,
    "max_block_ms": 10_000,
    "batch_size": 128 * 1024,
    "metrics_enabled": False,
}

CONNECTING = ("security_", "ssl_", "sasl_", "proxy_", "socks5_", "client_dns_", "socket_options", "reconnect_backoff_")
"""Prefixes of connection properties, which all kinds of clients share."""

log_filters.install()


def connection_properties(client: Mapping[str, Any]) -> dict[str, Any]:
    """Return the connection properties among a client's.

    >>> connection_properties({"security_protocol": "SSL", "fetch_max_bytes": 1, "ssl_cafile": "ca.pem"})
    {'security_protocol': 'SSL', 'ssl_cafile': 'ca.pem'}
    """
    known = KafkaAdminClient.DEFAULT_CONFIG
    return {name: value for name, value in client.items() if name.startswith(CONNECTING) and name in known}


class KafkaCluster(Cluster):
    """Real brokers behind a bootstrap string; a :class:`~downspout.kafka.port.Cluster`.

    Args:
        client: kafka-python properties for every connection (security, above all).

    Raises:
        BrokerError: no address answers within 3 s.
        ConfigError: ``bootstrap`` is malformed.
    """

    def __init__(self, bootstrap: str, client: Mapping[str, Any] | None = None) -> None:
        self.bootstrap = bootstrap  # ``host:port,host:port``
        self._addresses = parse_bootstrap(bootstrap)
        self._client = {**CONNECTION, **client_values(client or {})}
        self._check(self._client)

    def _check(self, client: Mapping[str, Any]) -> Address:
        """Return an address that answers; a client would only time out, without a reason.

        Raises:
            BrokerError: no address works (SilentBrokersError: none refuses us either).
        """
        usable, found = ask_all(self._addresses, client)
        if usable is None:
            cures = [trouble.cure for trouble in found if trouble.cure != START]
            what = "; ".join(trouble.what for trouble in found)
            kind = BrokerError if cures else SilentBrokersError
            raise kind(f"No Kafka at {self.bootstrap}: {what}", cure=(cures or [START])[0])
        return usable

    @contextmanager
    def _connecting(
        self, client: Mapping[str, Any], watch: Callable[[Any], Any] = lambda net: None
    ) -> Iterator[Callable[..., Any]]:
        """Provide a factory for the network client; if making the client fails, end its thread and explain.

        ``watch`` receives the network client, to report silent brokers.
        """
        made: list[Any] = []
        usable = self._check(client)

        def factory(**properties: Any) -> Any:
            made.append(KafkaNetClient(**{**SETUP, **properties}))
            prefer_brokers_that_answer(made[-1], usable)
            watch(made[-1])
            return made[-1]

        try:
            yield factory
        except errors.KafkaConfigurationError as error:
            raise ConfigError(f"kafka.client: {error}", cure="kafka-python's names, with underscores") from None
        except BaseException as error:
            for net in made:
                net.close()
            if isinstance(error, errors.KafkaTimeoutError):
                cure = "check that the brokers run and can be reached; then check the broker's log"
                if client.get("api_version") is not None:
                    cure = "leave kafka.client.api_version out: the client asks the brokers for theirs"
                what = f"Kafka at {self.bootstrap} answered, and then stopped answering: {describe(error)}"
                raise SilentBrokersError(what, cure=cure) from error
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
        """Return a consumer that commits only on request, unless ``auto_commit_ms`` is given.

        Raises:
            BrokerError: no broker answers, or the installed kafka-python is not supported.
        """
        properties = {**self._client, **CONSUMER, **client_values(client or {})}
        if properties["enable_auto_commit"]:
            raise ConfigError("kafka.client.enable_auto_commit cannot be set", cure="remove it")
        if auto_commit_ms is not None:
            properties |= {"enable_auto_commit": True, "auto_commit_interval_ms": auto_commit_ms}
        starts_at_beginning = properties.setdefault("auto_offset_reset", None) is None
        if starts_at_beginning:
            properties["auto_offset_reset"] = "none"
        if (session_ms := properties.get("session_timeout_ms")) is not None:
            properties.setdefault("heartbeat_interval_ms", max(min(3000, session_ms // 3), 1))
        watches: list[ConnectionWatch] = []
        with self._connecting(
            properties,
            lambda net: watches.append(ConnectionWatch(net, f"reading for group {group}" if group else "reading")),
        ) as factory:
            made = kafka.KafkaConsumer(
                bootstrap_servers=self.bootstrap.split(","),
                group_id=group,
                group_instance_id=instance_id if group is not None else None,
                kafka_client=factory,
                **properties,
            )
            if properties.get("api_version") is not None:  # otherwise it has connected to learn the version
                made.bootstrap(properties["bootstrap_timeout_ms"])
        watches[0].allow_joins(made)
        return KafkaConsumerPort(made, starts_at_beginning, columns)

    def producer(
        self, *, client: Mapping[str, Any] | None = None, partitioner: str | Choose = "sticky"
    ) -> KafkaProducerPort:
        """Return a producer: with acks=all and idempotent, unless its properties say otherwise.

        Raises:
            BrokerError: no broker answers.
            ConfigError: a property that kafka-python does not have, properties that contradict each other, or no such
                partitioner.
            MissingExtraError: the package of the compression is not installed.
        """
        wanted = producer_properties({**self._client, **PRODUCER, **(client or {})})
        # Batches linger before they are handed over; the client's own linger would come on top.
        properties = {**wanted, "linger_ms": 0}

        def make() -> Any:
            with self._connecting(properties, lambda net: ConnectionWatch(net, "writing")) as factory:
                return kafka.KafkaProducer(
                    bootstrap_servers=self.bootstrap.split(","),
                    kafka_client=factory,
                    **properties,
                )

        chooser = make_partitioner(partitioner, random.Random(), "partitioner")
        return KafkaProducerPort(make, chooser, wanted["linger_ms"] / 1000)

    def transactional_producer(
        self, transactional_id: str, *, client: Mapping[str, Any] | None = None, partitioner: str | Choose = "sticky"
    ) -> KafkaTransactionalPort:
        """Return a transactional producer; fence an older one with this id and abort its transaction.

        Raises:
            BrokerError: no broker answers.
            ConfigError: properties contradict each other.
            KafkaTimeoutError: the older transaction could not be ended in time.
        """
        given = {**self._client, **PRODUCER, "enable_idempotence": True, **(client or {})}
        wanted = producer_properties(given)
        properties = {**wanted, "linger_ms": 0, "transactional_id": transactional_id}

        def make() -> Any:
            with self._connecting(
                properties, lambda net: ConnectionWatch(net, f"writing as {transactional_id}")
            ) as factory:
                return kafka.KafkaProducer(
                    bootstrap_servers=self.bootstrap.split(","), kafka_client=factory, **properties
                )

        def described() -> tuple[str, int, int]:
            what = f"transactional id {transactional_id}"
            found = self._ask_again(what, lambda admin: admin.describe_transactions([transactional_id]))
            (each,) = found.values()
            return str(each.state.value), each.producer_id, each.producer_epoch

        chooser = make_partitioner(partitioner, random.Random(), "partitioner")
        return KafkaTransactionalPort(make, described, chooser, wanted["linger_ms"] / 1000)

    @contextmanager
    def _admin(self, made: Callable[[Any], None] = lambda net: None) -> Iterator[KafkaAdminClient]:
        """Open an admin client; ``made`` receives its network client."""
        with self._connecting(self._client) as factory:

            def seen(**properties: Any) -> Any:
                net = factory(**properties)
                made(net)
                return net

            admin = KafkaAdminClient(
                bootstrap_servers=self.bootstrap.split(","),
                kafka_client=seen,
                request_timeout_ms=15_000,
                **self._client,
            )
        try:
            yield admin
        finally:
            admin.close()

    def ensure_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None, replication: int | None = None
    ) -> bool:
        """Create the topic unless it exists, and wait until it can be used; return whether it was created."""
        wanted = {"num_partitions": partitions, "configs": dict(config or {}), "replication_factor": replication or -1}

        def create(admin: KafkaAdminClient) -> None:
            admin.create_topics({topic: wanted})
            _wait_for_leaders(admin, topic)

        try:
            self._retry(create, _is_unsent)
        except errors.TopicAlreadyExistsError:
            return False
        except errors.KafkaError as error:
            passes = _may_pass(error)
            otherwise = "check whether the brokers answer" if passes else "another name or setting"
            kind = SilentBrokersError if passes else BrokerError
            raise kind(f"{topic} cannot be created: {_brief(error)}", cure=cure_of(error, otherwise)) from error
        return True

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move the start of a partition's log to ``before``: the records below are gone for good."""
        with self._admin() as admin:
            try:
                admin.delete_records({TopicPartition(topic, partition): before})
            except errors.KafkaError as error:
                place = coordinates(topic, partition, before)
                raise BrokerError(f"the records below {place} cannot be deleted: {_brief(error)}") from error

    def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return all commits of a consumer group; empty if it does not exist.

        Raises:
            BrokerError: the broker refuses (no permission), or has no coordinator for the group after 10 s.
        """
        found = self._ask_of_group(group, lambda admin: admin.list_group_offsets({group: None})[group])
        return {tp: entry for tp, entry in (found or {}).items() if entry.offset >= 0}

    def open_transactions(self, group: str) -> list[OpenTransaction]:
        """Return the open transactions that may block a group's commits; empty if the brokers do not tell."""
        with suppress(errors.KafkaError, SilentBrokersError), self._admin() as admin:
            return open_transactions(admin, group)
        return []

    def group_members(self, group: str) -> list[str]:
        """Return the names of a group's live members: static ones by their instance, others by their id.

        Raises:
            BrokerError: the broker refuses (no permission), or has no coordinator for the group after 10 s.
        """
        found = self._ask_of_group(group, lambda admin: _described(admin, group))
        members = found["members"] if found else ()
        return sorted(member["group_instance_id"] or member["member_id"] for member in members)

    def describe_group(self, group: str) -> GroupDescription | None:
        """Return a group's state, coordinator and live members; None if it does not exist.

        Raises:
            BrokerError: the broker refuses (no permission), or has no coordinator for the group after 10 s.
        """
        nets: list[Any] = []
        found = self._ask_of_group(group, lambda admin: _described(admin, group), nets.append)
        return None if found is None else group_description(found, coordinator_of(nets[-1].cluster, group))

    def describe_logs(self, topics: Collection[str]) -> dict[str, TopicState]:
        """Return the beginning and end of topics' logs, or a ``problem``."""
        found: dict[str, TopicState] = self._ask_again(
            ", ".join(sorted(topics)), lambda admin: describe_logs(admin, topics)
        )
        return found

    def has_joined(self, group: str) -> bool:
        """Return whether a member has ever joined the group; otherwise its readers assign partitions themselves.

        Raises:
            BrokerError: the broker refuses (no permission), or has no coordinator for the group after 10 s.
        """
        found = self._ask_of_group(group, lambda admin: _described(admin, group))
        return bool(found and found["protocol_type"])

    def commit_ages(self, group: str, within_s: float) -> dict[TopicPartition, float] | None:
        """Return the ages in seconds of commits younger than ``within_s``; None: unknown."""
        try:
            consumer = self.consumer(group=None, client={"isolation_level": "read_uncommitted"})
        except SilentBrokersError as error:
            raise errors.KafkaTimeoutError(error.message) from error
        try:
            return commit_ages(consumer, group, time.time(), within_s)
        except errors.KafkaError:  # mostly: no right to read Kafka's own topic
            return None
        finally:
            consumer.close()

    def remove_members(self, group: str, names: Collection[str]) -> None:
        """Remove static members from a group by their instance ids; a running one rejoins.

        Raises:
            BrokerError: the broker refuses.
        """
        wanted = [MemberToRemove(group_instance_id=name) for name in names]
        found = self._ask_of_group(group, lambda admin: admin.remove_group_members(group, wanted)) or {}
        for name, error in found.items():
            if error not in (errors.NoError, errors.UnknownMemberIdError):
                raise BrokerError(f"{name} cannot be removed from group {group}: {error.__name__}", cure=_cure(error))

    def delete_offsets(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Delete a group's commits for these partitions.

        Raises:
            BrokerError: the broker refuses: no permission, or the group has members that read the topic.
        """
        found = self._ask_of_group(group, lambda admin: admin.delete_group_offsets(group, list(partitions))) or {}
        for tp, error in found.items():
            if error is not errors.NoError:
                what = f"the commit of group {group} for {coordinates(*tp)} cannot be deleted: {error.__name__}"
                raise BrokerError(what, cure=_cure(error))

    def _ask_of_group(
        self, group: str, question: Callable[[KafkaAdminClient], Any], made: Callable[[Any], None] = lambda net: None
    ) -> Any:
        """Ask until the group has a coordinator: a cluster's first group briefly has none. None: no such group."""
        try:
            return self._ask_again(f"group {group}", question, made)
        except BrokerError as error:
            if isinstance(error.__cause__, errors.GroupIdNotFoundError):
                return None
            raise

    def _ask_again(
        self, what: str, question: Callable[[KafkaAdminClient], Any], made: Callable[[Any], None] = lambda net: None
    ) -> Any:
        """Ask, and retry errors that may pass, such as a dead broker or a moving coordinator, for 10 s."""
        try:
            return self._retry(question, _may_pass, made)
        except errors.KafkaError as error:
            cure = cure_of(error, "check the broker's log")
            raise BrokerError(f"{what} cannot be read: {_brief(error)}", cure=cure) from error

    def _retry(
        self,
        call: Callable[[KafkaAdminClient], Any],
        passes: Callable[[errors.KafkaError], bool],
        made: Callable[[Any], None] = lambda net: None,
    ) -> Any:
        """Call with an admin client, and again with a new one for 10 s after errors that pass."""
        deadline = time.monotonic() + ERROR_S_MAX
        while True:
            try:
                # A client that knows the coordinator keeps asking that node, even if it is dead.
                with self._admin(made) as admin:
                    return call(admin)
            except errors.KafkaError as error:
                if not passes(error) or time.monotonic() >= deadline:
                    raise
            time.sleep(ERROR_POLL_S)

    def delete_topic(self, topic: str) -> bool:
        """Delete a topic with all its records; return whether there was one."""
        try:
            self._retry(
                lambda admin: admin.delete_topics([topic]),
                _is_unsent,
            )
        except errors.UnknownTopicOrPartitionError:
            return False
        except errors.KafkaError as error:
            raise BrokerError(f"{topic} cannot be deleted: {_brief(error)}") from error
        return True

    def delete_groups(self, groups: Collection[str]) -> list[str]:
        """Delete consumer groups with their commits; return those kept because they still have members."""
        if not groups:
            return []
        found = self._ask_again(", ".join(groups), lambda admin: admin.delete_groups(list(groups)))
        left = [group for group, answer in found.items() if answer == "NonEmptyGroupError"]
        for group, answer in found.items():
            if answer not in ("OK", "NonEmptyGroupError", "GroupIdNotFoundError"):
                cure = _cure(getattr(errors, str(answer), errors.KafkaError))
                raise BrokerError(f"group {group} cannot be deleted: {answer}", cure=cure)
        return left

    def leaders(self, topic: str) -> dict[int, int]:
        """Return the leader of each partition of a topic; -1: none at the moment. Empty: no such topic."""
        (found,) = self._ask_again(topic, lambda admin: admin.describe_topics([topic]))
        return {part["partition_index"]: part["leader_id"] for part in found["partitions"]}

    def topics(self) -> dict[str, int]:
        """Return the partition counts of all topics but Kafka's own, sorted by name."""
        found = self._ask_again("the list of topics", lambda admin: admin.describe_topics())
        return {t["name"]: len(t["partitions"]) for t in sorted(found, key=lambda t: t["name"]) if not t["is_internal"]}

    def topic_bytes(self) -> dict[str, int]:
        """Return the disk usage of each topic, counting one replica of each partition; empty without permission.

        Raises:
            BrokerError: no broker answers.
        """
        sizes: dict[tuple[str, int], int] = {}
        for broker in self._ask_again("the size of topics", lambda admin: admin.describe_log_dirs()):
            for topic in (topic for folder in broker["log_dirs"] for topic in folder["topics"]):
                for part in topic["partitions"]:
                    key = topic["name"], part["partition_index"]
                    sizes[key] = max(part["partition_size"], sizes.get(key, 0))
        found: dict[str, int] = {}
        for (name, _), count in sizes.items():
            found[name] = found.get(name, 0) + count
        return found


def _is_unsent(error: errors.KafkaError) -> bool:
    """Return whether the controller had only just started: the client knew no address for it, and sent nothing."""
    return isinstance(error, errors.UnknownBrokerIdError)


def _may_pass(error: errors.KafkaError) -> bool:
    """Return whether to retry: kafka-python does not consider an unknown controller retriable."""
    return bool(error.retriable) or _is_unsent(error)


def _wait_for_leaders(admin: KafkaAdminClient, topic: str) -> None:
    """Wait until a new topic can be used. The client's own wait polls only every 0.1 s."""
    deadline = time.monotonic() + TOPIC_READY_S
    while True:
        with suppress(errors.RetriableError):
            (described,) = admin.describe_topics([topic])
            partitions = described["partitions"]
            if partitions and not any(part["error_code"] or part["leader_id"] < 0 for part in partitions):
                return
        if time.monotonic() >= deadline:
            raise errors.KafkaTimeoutError(f"topic {topic} was created, but has no leader after {TOPIC_READY_S} s")
        time.sleep(TOPIC_POLL_S)


def _described(admin: KafkaAdminClient, group: str) -> Any:
    """Describe a group. kafka-python returns an error as text; without this check a denied group looks empty.

    Raises:
        KafkaError: the broker's error.
    """
    found = admin.describe_groups([group])[group]
    if text := found["error"]:
        code = re.match(r"\[Error (\d+)\]", text)
        raise (errors.for_code(int(code[1])) if code else errors.KafkaError)(text)
    return found


def _cure(error: type[errors.KafkaError]) -> str:
    return cure_of(error(), "stop the consumers of the group")


def _brief(error: Exception) -> str:
    """Return the name and reason of an error, without the request and response that kafka-python includes.

    >>> _brief(errors.InvalidTopicError("Request ... failed with response 'error_message='Topic name is illegal''"))
    'InvalidTopicError (Topic name is illegal)'
    """
    name, text = type(error).__name__, str(error)
    said = re.search(r"error_message='([^']+)'", text)
    detail = said[1] if said else text if "Request" not in text else getattr(error, "description", "")
    return f"{name} ({detail[:300]})" if detail else name

"""The state of older spouts in ZooKeeper, of the spout for Kafka 0.8 and Trident's: formats and next offsets.

The spout for Kafka 0.8 keeps a node for each partition, ``zkRoot/id/partition_N``, or with wildcard topics
``zkRoot/id/<topic>/partition_N``. It holds JSON of five keys, and its ``offset`` is the next to read. That spout
ignores an unreadable node, and so do we, with a warning.

Trident keeps ``currtx``, the next transaction to commit, and for each partition the metadata of its last transactions.
Records of a transaction below ``currtx`` are committed; the others come again.

The few operations on ZooKeeper are behind a port, :class:`Nodes`; its implementation uses kazoo. Each waits at most
:data:`ANSWER_S` for an answer: no call of a spout may take longer than 5 s. Errors of ZooKeeper become an
:class:`~downspout.spout.ports.OffsetStoreError`, which says whether the same may work in a moment.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from downspout.errors import BrokerError, ConfigError, MissingExtraError, coordinates
from downspout.kafka.port import TopicPartition
from downspout.offsets.seek_targets import Place, TargetKind
from downspout.spout.ports import OffsetStoreError

ANSWER_S = 4.0
ANY = -1
"""Of an operation: whatever the version is."""
SCHEME = "zookeeper://"
_HOST = re.compile(r"[A-Za-z0-9._-]+(?::\d{1,5})?|\[[0-9A-Fa-f:.]+\](?::\d{1,5})?")


class Conflict(Exception):
    """A node is not in the state that an operation expects; the transaction did nothing."""


class Node(NamedTuple):
    """The content of a node."""

    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of a transaction."""

    kind: str  # "create", "ephemeral" (ends with the session), "set", "check" or "delete"
    path: str
    data: bytes = b""
    version: int = ANY  # that the node must have


class Nodes(Protocol):
    """A tree of nodes. Each call raises an OffsetStoreError if ZooKeeper fails."""

    def get(self, path: str) -> Node | None:
        """Return a node, or None."""

    def children(self, path: str) -> list[str]:
        """Return the names below a node, sorted; empty if the node does not exist."""

    def ensure(self, path: str) -> None:
        """Make an empty node, and those above it, unless they exist."""

    def transact(self, operations: Sequence[Operation]) -> None:
        """Do all or nothing; raise :class:`Conflict` if a node exists, is missing, or has another version."""

    def close(self) -> None:
        """End the session."""


class Location(NamedTuple):
    """The address of nodes, and the user for reading them."""

    hosts: str  # host:port,host:port
    path: str  # begins with a slash, and ends without one; empty: the root
    user: str = ""

    @property
    def shown(self) -> str:
        """The location for messages, without a password."""
        return f"{SCHEME}{self.user + '@' if self.user else ''}{self.hosts}{self.path}"


def location_of(text: str, key: str) -> Location:
    """Parse ``[zookeeper://][user@]host:port,host:port/path``.

    >>> location_of("zookeeper://zk1:2181,zk2:2181/kafkastorm/orders", "--from-zookeeper").path
    '/kafkastorm/orders'

    Raises:
        ConfigError: it is out of form.
    """
    rest = text.strip().removeprefix(SCHEME)
    address, slash, path = rest.partition("/")
    user, _, hosts = address.rpartition("@")
    parts = [part for part in path.split("/") if part] if slash else []
    if ":" in user:
        raise ConfigError(f"{key} holds a password", cure="the user alone, and the password by reference (env:NAME)")
    if not hosts or not all(_HOST.fullmatch(host) for host in hosts.split(",")) or {".", ".."} & set(parts):
        raise ConfigError(f"{key} = {text!r} does not name a ZooKeeper", cure="zk1:2181,zk2:2181/root/id")
    return Location(hosts, "".join(f"/{part}" for part in parts), user)


def open_nodes(location: Location, password: str | None = None) -> Nodes:
    """Begin a session.

    Raises:
        MissingExtraError: kazoo is not installed.
        OffsetStoreError: no server answers.
    """
    try:
        import kazoo.client
    except ImportError:
        raise MissingExtraError("ZooKeeper needs kazoo", cure='pip install "downspout[zookeeper]"') from None
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # what it cannot do, it raises too
    auth = [("digest", f"{location.user}:{password or ''}")] if location.user else None
    acl = None
    if location.user:
        from kazoo.security import make_digest_acl

        acl = [make_digest_acl(location.user, password or "", all=True)]
    client = kazoo.client.KazooClient(location.hosts, timeout=10.0, auth_data=auth, default_acl=acl)
    try:
        client.start(timeout=ANSWER_S)
    except Exception as error:  # kazoo's own, and what resolving names raises
        with suppress(Exception):
            client.stop()
            client.close()
        raise OffsetStoreError(
            f"{location.shown}: no ZooKeeper answers within {ANSWER_S:g} s: {error}",
            cure="check the hosts and ports, and whether it runs",
            passes=True,
        ) from error
    return KazooNodes(client, location.shown)


class KazooNodes:
    """See :class:`Nodes`."""

    def __init__(self, client: Any, shown: str) -> None:
        self._client = client
        self._shown = shown

    def get(self, path: str) -> Node | None:
        """Return a node."""
        from kazoo.exceptions import NoNodeError

        with self._asking(path):
            try:
                data, stat = self._client.get_async(path).get(timeout=ANSWER_S)
            except NoNodeError:
                return None
        return Node(data or b"", stat.version)

    def children(self, path: str) -> list[str]:
        """Return the names below a node."""
        from kazoo.exceptions import NoNodeError

        with self._asking(path):
            try:
                return sorted(self._client.get_children_async(path).get(timeout=ANSWER_S))
            except NoNodeError:
                return []

    def ensure(self, path: str) -> None:
        """Make a node and those above it."""
        with self._asking(path):
            self._client.ensure_path_async(path).get(timeout=ANSWER_S)

    def transact(self, operations: Sequence[Operation]) -> None:
        """Do all or nothing."""
        from kazoo import exceptions

        transaction = self._client.transaction()
        steps: dict[str, Callable[[Operation], Any]] = {
            "create": lambda each: transaction.create(each.path, each.data),
            "ephemeral": lambda each: transaction.create(each.path, each.data, ephemeral=True),
            "set": lambda each: transaction.set_data(each.path, each.data, each.version),
            "check": lambda each: transaction.check(each.path, each.version),
            "delete": lambda each: transaction.delete(each.path, each.version),
        }
        for operation in operations:
            steps[operation.kind](operation)
        with self._asking(operations[0].path):
            results = transaction.commit_async().get(timeout=ANSWER_S)
            for result, operation in zip(results, operations, strict=True):
                if not isinstance(result, Exception) or isinstance(result, exceptions.RolledBackError):
                    continue
                unexpected = exceptions.NoNodeError, exceptions.NodeExistsError, exceptions.BadVersionError
                if isinstance(result, unexpected) or type(result).__name__ == "RuntimeInconsistency":
                    raise Conflict(operation.path)
                raise result

    def close(self) -> None:
        """End the session."""
        with suppress(Exception):
            self._client.stop()
            self._client.close()

    @contextmanager
    def _asking(self, path: str) -> Iterator[None]:
        from kazoo import exceptions
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            yield
        except (exceptions.NoAuthError, exceptions.AuthFailedError) as error:
            raise OffsetStoreError(
                f"{self._shown}: no permission to use {path}",
                cure="zookeeper://user@hosts/…, with the password by reference, as a user whom the node's ACL allows",
            ) from error
        except (KazooTimeoutError, exceptions.ZookeeperError) as error:
            passes = isinstance(
                error,
                KazooTimeoutError
                | exceptions.ConnectionLoss
                | exceptions.SessionExpiredError
                | exceptions.ConnectionClosedError
                | exceptions.OperationTimeoutError,
            )
            raise OffsetStoreError(
                f"{self._shown}: {path}: {type(error).__name__} {error}".rstrip(),
                cure="check ZooKeeper's log" if not passes else "check whether ZooKeeper runs",
                passes=passes,
            ) from error


PARTITION = re.compile(r"partition_(\d{1,9})")
CLIENT_PARTITION = re.compile(r"(.+)@(\d{1,9})")  # Of Storm 2's Trident spout: topic@N
NUMBER = re.compile(r"\d{1,9}")  # Of Storm 1's: topic/N
WATCH_S = 5.0
"""Two of the spout's ``stateUpdateIntervalMs``, and some time to spare."""


@dataclass(frozen=True, slots=True)
class SpoutNode:
    """A node of the spout for Kafka 0.8."""

    tp: TopicPartition
    offset: int  # the next to read
    topology_id: str = ""
    topology_name: str = ""
    broker: tuple[str, int] = ("", 0)

    def to_json(self) -> bytes:
        """Return it as that spout writes it, key by key.

        >>> SpoutNode(TopicPartition("ma30", 0), 8066973, "x-1", "ljhtest", ("kafka1", 9092)).to_json().decode()
        '{"topology":{"id":"x-1","name":"ljhtest"},"offset":8066973,"partition":0,"broker":{"host":"kafka1","port":9092},"topic":"ma30"}'
        """
        values = {
            "topology": {"id": self.topology_id, "name": self.topology_name},
            "offset": self.offset,
            "partition": self.tp.partition,
            "broker": {"host": self.broker[0], "port": self.broker[1]},
            "topic": self.tp.topic,
        }
        return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()


def read_node(data: bytes, number: int, topic: str = "") -> SpoutNode:
    """Parse a node.

    Args:
        number: of the partition, as the node's name says.
        topic: as the path says; empty: it does not.

    Raises:
        ValueError: it is empty, foreign, or lacks a key.
    """
    values = _object(data)
    topology, offset = values.get("topology"), values.get("offset")
    if not isinstance(topology, dict) or not isinstance(topology.get("id"), str):
        raise ValueError("it does not name a topology")
    found, partition = values.get("topic", topic), values.get("partition", number)
    if (at := _offset(offset)) is None:
        raise ValueError(f"its offset is {offset!r}")
    if not isinstance(found, str) or not found:
        raise ValueError("it does not name a topic")
    if (partition, found) != (number, topic or found):
        raise ValueError(f"it is of {found}[{partition}]")
    broker = values.get("broker")
    host, port = (broker.get("host"), broker.get("port")) if isinstance(broker, dict) else ("", 0)
    return SpoutNode(
        TopicPartition(found, number), at, topology["id"], str(topology.get("name") or ""),
        (host if isinstance(host, str) else "", port if isinstance(port, int) else 0),
    )  # fmt: skip


def _object(data: bytes) -> dict[str, Any]:
    if not data:
        raise ValueError("it is empty")
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError(f"it is not JSON: {data[:60]!r}") from None
    if not isinstance(values, dict):
        raise ValueError(f"it is not a JSON object: {data[:60]!r}")
    return values


def _offset(value: Any) -> int | None:
    """Return a value if it may be an offset, or a transaction's number; values below 0 stand for a time."""
    return value if type(value) is int and abs(value) < 2**63 else None


@dataclass(slots=True)
class Found:
    """What was read below a path."""

    path: str
    offsets: dict[TopicPartition, int] = field(default_factory=dict)  # the next to read
    notes: list[str] = field(default_factory=list)
    versions: dict[str, Node] = field(default_factory=dict)  # what each node holds: two looks that differ show a writer

    def _add(self, path: str, tp: TopicPartition, offset: int) -> None:
        if tp in self.offsets:
            self.notes.append(f"{path}: {coordinates(*tp)} has another node; this one is left out")
        else:
            self.offsets[tp] = offset


def read_state(nodes: Nodes, path: str) -> Found:
    """Return the next offsets of the spout that keeps its state at a path.

    Raises:
        ConfigError: the path does not exist, or has no spout's state below it.
        OffsetStoreError: ZooKeeper does not answer, or refuses.
    """
    names = nodes.children(path or "/")
    if not names and nodes.get(path or "/") is None:
        raise ConfigError(f"ZooKeeper has no node {path or '/'}", cure="zkRoot/id of the old topology's SpoutConfig")
    found = Found(path)
    if "coordinator" in names and "user" in names:
        _read_trident(nodes, found)
    else:
        _read_spout(nodes, found, path, "", names)
    if not found.offsets and not found.notes:
        raise ConfigError(
            f"{path or '/'} holds no partition_N, and no state of Trident: {', '.join(names) or 'nothing'}",
            cure="zkRoot/id of SpoutConfig; for Trident /transactional/<transaction id>",
        )
    return found


def _look(nodes: Nodes, found: Found, path: str) -> bytes:
    node = nodes.get(path) or Node(b"", -1)
    found.versions[path] = node
    return node.data


def _read_spout(nodes: Nodes, found: Found, path: str, topic: str, names: list[str]) -> None:
    for name in names:
        where = f"{path}/{name}"
        if (match := PARTITION.fullmatch(name)) is None:
            if not topic and (below := nodes.children(where)):
                _read_spout(nodes, found, where, name, [each for each in below if PARTITION.fullmatch(each)])
            continue
        try:
            read = read_node(_look(nodes, found, where), int(match[1]), topic)
        except ValueError as error:
            found.notes.append(f"{where} is ignored: {error}")
            continue
        found._add(where, read.tp, read.offset)


# --- Trident ---


def _read_trident(nodes: Nodes, found: Found) -> None:
    coordinator = f"{found.path}/coordinator"
    currtx = _number(_look(nodes, found, f"{coordinator}/currtx"))
    attempts = _look(nodes, found, f"{coordinator}/currattempts")
    for number in nodes.children(f"{coordinator}/meta"):
        found.versions[f"{coordinator}/meta/{number}"] = Node(b"", 0)
    if currtx is None:
        found.notes.append(f"{coordinator}/currtx holds no transaction: all transactions are taken as not committed")
    else:
        tries = f", {attempts.decode(errors='replace')} attempts" if attempts else ""
        found.notes.append(f"transaction {currtx} is the next to be committed{tries}: its records are processed again")
    user = f"{found.path}/user"
    for name in nodes.children(user):
        below = nodes.children(f"{user}/{name}")
        is_partition = PARTITION.fullmatch(name) or CLIENT_PARTITION.fullmatch(name)
        if not is_partition and any(PARTITION.fullmatch(each) or NUMBER.fullmatch(each) for each in below):
            for each in below:
                _read_batches(nodes, found, f"{user}/{name}/{each}", name, each, currtx)
        else:
            _read_batches(nodes, found, f"{user}/{name}", "", name, currtx)


def _number(data: bytes) -> int | None:
    try:
        return _offset(json.loads(data))
    except (ValueError, RecursionError):
        return None


def _read_batches(nodes: Nodes, found: Found, path: str, topic: str, name: str, currtx: int | None) -> None:
    """Continue after the last committed transaction or, if none is known, at the beginning of the first."""
    if (match := PARTITION.fullmatch(name)) is not None:
        number = int(match[1])
    elif topic and NUMBER.fullmatch(name):
        number = int(name)
    elif (match := CLIENT_PARTITION.fullmatch(name)) is not None:
        topic, number = match[1], int(match[2])
    else:
        return
    batches: dict[TopicPartition, dict[int, tuple[int, int]]] = {}  # partition_N may hold several topics
    for text in nodes.children(path):
        if not text.isdecimal():
            continue
        where = f"{path}/{text}"
        try:
            tp, *bounds = _read_batch(_look(nodes, found, where), number, topic)
        except ValueError as error:
            found.notes.append(f"{where} is ignored: {error}")
            continue
        batches.setdefault(tp, {})[int(text)] = bounds[0], bounds[1]
    for tp, by_txid in batches.items():
        committed = [txid for txid in by_txid if currtx is not None and txid < currtx]
        found._add(path, tp, by_txid[max(committed)][1] if committed else by_txid[min(by_txid)][0])


def _read_batch(data: bytes, number: int, topic: str) -> tuple[TopicPartition, int, int]:
    """Return the partition, the first offset and the end offset of a transaction."""
    values = _object(data)
    found = values.get("topic", topic)
    if not isinstance(found, str) or not found:
        raise ValueError("it does not name a topic")
    if (found, values.get("partition", number)) != (topic or found, number):
        raise ValueError(f"it is of {found}[{values.get('partition', number)}]")
    if "firstOffset" in values:  # storm-kafka-client; its last offset is in the batch
        start, last = _offset(values["firstOffset"]), _offset(values.get("lastOffset"))
        end = None if last is None else last + 1
    else:
        start, end = _offset(values.get("offset")), _offset(values.get("nextOffset"))
    if start is None or end is None or end < start:
        raise ValueError("it holds no first and last offset")
    return TopicPartition(found, number), start, end


# --- where to go on ---


def refuse_changes(
    nodes: Nodes, found: Found, watch_s: float = WATCH_S, sleep: Callable[[float], object] = time.sleep
) -> None:
    """Check again after a while, and raise if a node has changed: the old topology still runs.

    Raises:
        BrokerError: it has.
    """
    sleep(watch_s)
    now = read_state(nodes, found.path)
    paths = sorted(now.versions.keys() | found.versions.keys())
    if changed := [path for path in paths if now.versions.get(path) != found.versions.get(path)]:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise BrokerError(
            f"{changed[0]}{more} changed within {watch_s:g} s: the old topology still runs",
            cure="kill it (storm kill), wait until its workers are gone, and import again",
        )


def places_of(
    offsets: Mapping[TopicPartition, int], start: Place, starts: Mapping[TopicPartition, int], behind_max: int | None
) -> tuple[dict[TopicPartition, Place], list[str]]:
    """Return the next offset of each partition, by the rules of the spout for Kafka 0.8, and remarks.

    An offset of 0 or less is none, and one that lies more than ``behind_max`` behind the start does not count either.

    Args:
        start: that spout's start without an offset (its ``startOffsetTime``).
        starts: that start as an offset, for each partition in Kafka.
        behind_max: its ``maxOffsetBehind``; None: no limit.

    >>> tp = TopicPartition("orders", 0)
    >>> places_of({tp: 7}, Place(TargetKind.LATEST), {tp: 100}, 50)[0][tp].kind
    <TargetKind.LATEST: 'latest'>
    """
    places, notes = {}, []
    for tp, offset in sorted(offsets.items()):
        places[tp] = Place(TargetKind.OFFSET, offset)
        if offset <= 0:
            why = "is not an offset to continue at"
        elif behind_max is not None and tp in starts and starts[tp] - offset > behind_max:
            why = f"lies more than {behind_max} behind {starts[tp]}"
        else:
            continue
        places[tp] = start
        notes.append(f"{coordinates(*tp)}: {offset} {why}: the start instead, {start.kind.value}")
    return places, notes

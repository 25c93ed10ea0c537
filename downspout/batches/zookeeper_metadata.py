"""The metadata of batches in ZooKeeper, in Trident's paths and form, so that either resumes where the other stopped.

``zookeeper://hosts/root`` keeps an id at ``root/<id>``; the default root is Storm's, ``/transactional``::

    coordinator/currtx, coordinator/currattempts, coordinator/meta/<txid>
    user/<topic>@<N>/<txid>                              user/partition_N and other paths of older spouts are read too
    coordinator/downspout                                the claim: owner and epoch
    coordinator/downspout/lease                          ephemeral, of the claiming session

Trident has no claims: nothing prevents its topology from running at the same time. Each of our writes is one
transaction that checks the claim's node. Keyed state is not kept here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from downspout.batches.core.protocol import (
    BatchRange,
    CoordinatorState,
    after,
    decode_partitions,
    decode_range,
    decode_state,
    encode_attempts,
    encode_partitions,
    encode_range,
    partition_id,
)
from downspout.batches.stores import (
    BatchIdInUseError,
    BatchStoreContext,
    BatchStoreError,
    PartitionId,
    StaleCoordinatorError,
)
from downspout.errors import ConfigError
from downspout.offsets.zookeeper import (
    CLIENT_PARTITION,
    PARTITION,
    Conflict,
    Location,
    Node,
    Nodes,
    Operation,
    location_of,
    open_nodes,
)
from downspout.spout.ports import OffsetStoreError

T = TypeVar("T")
SETTING = "batch.store"
ROOT = "/transactional"
TRIES = 10
"""How often a transaction is tried if it conflicts with others."""
NUMBER = re.compile(r"\d{1,18}")


def open_zookeeper_metadata(location: str, context: BatchStoreContext) -> ZooKeeperMetadata:
    """Open the store at a URL."""
    found = location_of(location, SETTING)
    if "/" in context.id or context.id in (".", "..", ""):
        raise ConfigError(f"batch.id = {context.id!r} cannot be a node of ZooKeeper", cure="a name without slash")
    with _errors():
        return ZooKeeperMetadata(open_nodes(found, context.password), found, context)


class ZooKeeperMetadata:
    """See :class:`~downspout.batches.stores.BatchStore`."""

    def __init__(self, nodes: Nodes, location: Location, context: BatchStoreContext) -> None:
        self.location = location.shown
        self._nodes, self._context = nodes, context
        base = f"{location.path or ROOT}/{context.id}"
        self._user, self._coordinator = f"{base}/user", f"{base}/coordinator"
        self._claim, self._lease = f"{base}/coordinator/downspout", f"{base}/coordinator/downspout/lease"

    # --- the claim ---

    def claim(self, owner: str) -> int:
        """See :meth:`~downspout.batches.stores.BatchStore.claim`."""
        with _errors():
            for path in (f"{self._coordinator}/meta", self._user):
                self._nodes.ensure(path)
            return self._patiently(lambda: self._try_claim(owner))

    def _try_claim(self, owner: str) -> int:
        claim, lease = self._nodes.get(self._claim), self._nodes.get(self._lease)
        before, topology, epoch = self._read_claim(claim)
        if lease is not None and before != owner:
            raise BatchIdInUseError(
                f"{self.location}: batch.id {self._context.id} is in use by topology {topology} ({before}), which is "
                "running",
                cure="another batch.id; or stop that topology, and wait until its session has ended",
            )
        data = _bytes({"owner": owner, "topology": self._context.topology, "epoch": epoch + 1})
        kind, version = ("create", -1) if claim is None else ("set", claim.version)
        operations = [Operation(kind, self._claim, data, version)]
        if lease is not None:  # of our topology's former process, whose session may end at any time
            operations.append(Operation("delete", self._lease))
        self._nodes.transact([*operations, Operation("ephemeral", self._lease)])
        return epoch + 1

    def release(self, epoch: int) -> None:
        """Release the claim."""
        with _errors():
            claim = self._nodes.get(self._claim)
            if claim is not None and self._read_claim(claim)[2] == epoch and self._nodes.get(self._lease) is not None:
                try:
                    self._nodes.transact(
                        [Operation("check", self._claim, version=claim.version), Operation("delete", self._lease)]
                    )
                except Conflict:
                    return  # another process has claimed meanwhile

    def _read_claim(self, node: Node | None) -> tuple[str, str, int]:
        if node is None:
            return "", "", 0
        values = self._json(self._claim, node.data)
        try:
            owner, topology, epoch = values["owner"], values["topology"], values["epoch"]
            return str(owner), str(topology), int(epoch)
        except (KeyError, TypeError, ValueError):
            raise BatchStoreError(
                f"{self.location}: {self._claim} is not in Downspout's form: {node.data[:60]!r}",
                cure="delete that node",
            ) from None

    # --- the coordinator ---

    def load_coordinator(self) -> CoordinatorState | None:
        """Return the coordinator's state, even if Trident stored it."""
        with _errors():
            # Both are written at once, but between these reads another coordinator may write.
            current, attempts = (self._get(f"{self._coordinator}/{name}") for name in ("currtx", "currattempts"))
            if current is None and attempts is None:
                return None
            return self._parsed(self._coordinator, lambda: decode_state(current, attempts))

    def save_coordinator(self, epoch: int, state: CoordinatorState) -> None:
        """Store the coordinator's state, in one transaction."""
        values = {"currtx": state.current, "currattempts": encode_attempts(state)}

        def operations() -> list[Operation]:
            puts = [self._put(f"{self._coordinator}/{name}", value) for name, value in values.items()]
            if self._nodes.get(self._lease) is None:  # our session has expired, and we have a new one
                puts.append(Operation("ephemeral", self._lease))
            return puts

        self._write(epoch, operations)

    def load_partitions(self, txid: int) -> Sequence[Any] | None:
        """Return the partitions of a transaction."""
        with _errors():
            node = self._nodes.get(path := f"{self._coordinator}/meta/{txid}")
            try:
                found = json.loads(node.data) if node is not None and node.data else None
            except (ValueError, RecursionError):  # the spout of 0.8 wrote its object's Java toString()
                found = None
            if found is None:
                return None
            if not isinstance(found, list) or not any(isinstance(each, Mapping) for each in found):
                return list(found) if isinstance(found, list) else [found]
            partitions: Sequence[Any] = self._parsed(path, lambda: decode_partitions(found))
            return partitions

    def save_partitions(self, epoch: int, txid: int, partitions: Sequence[Any]) -> None:
        """Store the partitions of a transaction."""
        form = encode_partitions(partitions) if _are_kafkas(partitions) else partitions
        self._write(epoch, lambda: [self._put(f"{self._coordinator}/meta/{txid}", form)])

    # --- ranges ---

    def load_ranges(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, Mapping[int, BatchRange]]:
        """Return the ranges of these partitions, by transaction, including those of older spouts."""
        with _errors():
            found = {name: self._load(name) for name in partitions}
        return {name: ranges for name, ranges in found.items() if ranges}

    def _load(self, name: PartitionId) -> dict[int, BatchRange]:
        read: dict[int, BatchRange] = {}
        for path, txid, value in self._stored(name):
            if txid not in read:
                read[txid] = self._parsed(f"{path}/{txid}", partial(decode_range, value))
        ranges: dict[int, BatchRange] = {}
        previous = None
        for txid in sorted(read):
            previous = ranges[txid] = after(read[txid], previous)
        return ranges

    def _stored(self, name: PartitionId) -> Iterator[tuple[str, int, Any]]:
        """Yield path, transaction and content of a partition's stored ranges, the current spout's first.

        The spout of 0.8 kept ``partition_N`` without the topic in the path; its content names the topic.
        """
        topic, _, number = name.rpartition("/")
        for path in self._paths(name):
            for txid in self._txids(path):
                if (value := self._get(f"{path}/{txid}")) is None:
                    continue
                named = value if isinstance(value, Mapping) else {}
                is_of = named.get("topic", None if path.endswith(f"user/partition_{number}") else topic) == topic
                if is_of and named.get("partition", int(number)) == int(number):
                    yield path, txid, value

    def list_partitions(self) -> Collection[PartitionId]:
        """Return all partitions with stored ranges and the topic in their path."""
        found = set[PartitionId]()
        with _errors():
            for name in self._nodes.children(self._user):
                if (match := CLIENT_PARTITION.fullmatch(name)) is not None:
                    below = [(match[1], int(match[2]))] if self._txids(f"{self._user}/{name}") else []
                else:
                    numbers = [PARTITION.fullmatch(each) or NUMBER.fullmatch(each) for each in self._below(name)]
                    below = [(name, int(each[0].removeprefix("partition_"))) for each in numbers if each]
                found |= {partition_id(*each) for each in below}
        return sorted(found)

    def _below(self, name: str) -> list[str]:
        path = f"{self._user}/{name}"
        return (
            [] if PARTITION.fullmatch(name) else [e for e in self._nodes.children(path) if self._txids(f"{path}/{e}")]
        )

    def save_ranges(self, epoch: int, txid: int, ranges: Mapping[PartitionId, BatchRange]) -> None:
        """Store the ranges of a transaction as a unit."""
        paths = {name: self._paths(name)[0] for name in ranges}
        with _errors():
            for path in paths.values():
                self._nodes.ensure(path)
        puts = {f"{paths[name]}/{txid}": encode_range(found) for name, found in sorted(ranges.items())}
        self._write(epoch, lambda: [self._put(path, value) for path, value in puts.items()])

    def delete_ranges(self, epoch: int, from_txid: int, partitions: Collection[PartitionId]) -> None:
        """Delete the ranges of these partitions from a transaction on."""
        self._write(epoch, lambda: self._deletions(partitions, lambda txid: txid >= from_txid))

    def delete_below(self, epoch: int, txid: int, partitions: Collection[PartitionId]) -> None:
        """Delete ranges and partitions below a transaction."""
        meta = f"{self._coordinator}/meta"

        def operations() -> list[Operation]:
            old = [Operation("delete", f"{meta}/{each}") for each in self._txids(meta) if each < txid]
            return old + self._deletions(partitions, lambda each: each < txid)

        self._write(epoch, operations)

    def _deletions(self, partitions: Collection[PartitionId], is_old: Callable[[int], bool]) -> list[Operation]:
        found = dict.fromkeys(
            f"{path}/{txid}" for name in partitions for path, txid, _ in self._stored(name) if is_old(txid)
        )
        return [Operation("delete", path) for path in found]

    def close(self) -> None:
        """End the session, which releases the claim."""
        self._nodes.close()

    # --- inside ---

    def _paths(self, name: PartitionId) -> tuple[str, ...]:
        """Return the possible paths of a partition's ranges, the current spout's first, then older ones'."""
        topic, _, number = name.rpartition("/")
        names = (f"{topic}@{number}", f"{topic}/{number}", f"{topic}/partition_{number}", f"partition_{number}")
        return tuple(f"{self._user}/{each}" for each in names)

    def _txids(self, path: str) -> list[int]:
        return [int(each) for each in self._nodes.children(path) if NUMBER.fullmatch(each)]

    def _get(self, path: str) -> Any:
        node = self._nodes.get(path)
        return None if node is None or not node.data else self._json(path, node.data)

    def _put(self, path: str, value: Any) -> Operation:
        node = self._nodes.get(path)
        if node is None:
            return Operation("create", path, _bytes(value))
        return Operation("set", path, _bytes(value), node.version)

    def _write(self, epoch: int, operations: Callable[[], list[Operation]]) -> None:
        """Perform operations in one transaction in which the claim with this epoch is valid."""

        def attempt() -> None:
            claim = self._nodes.get(self._claim)
            _, topology, now = self._read_claim(claim)
            if claim is None or now != epoch:
                raise StaleCoordinatorError(
                    f"{self.location}: batch.id {self._context.id} was claimed by another process (epoch {epoch} has "
                    f"ended; now {now}, of topology {topology}); nothing was stored",
                    cure="one topology for each batch.id",
                )
            if found := operations():
                self._nodes.transact([Operation("check", self._claim, version=claim.version), *found])

        with _errors():
            self._patiently(attempt)

    def _patiently(self, work: Callable[[], T]) -> T:
        for _ in range(TRIES):
            try:
                return work()
            except Conflict:
                continue
        raise BatchStoreError(
            f"{self.location}: batch.id {self._context.id} was changed by others at each attempt",
            cure="one topology for each batch.id; stop Trident's, which writes there too",
            passes=True,
        )

    def _json(self, path: str, data: bytes) -> Any:
        return self._parsed(path, lambda: json.loads(data))

    def _parsed(self, path: str, parse: Callable[[], T]) -> T:
        try:
            return parse()
        except (ValueError, RecursionError) as error:
            raise BatchStoreError(
                f"{self.location}: {path}: {error}", cure="look at that node, and delete it"
            ) from None


def _are_kafkas(partitions: Sequence[Any]) -> bool:
    """Return whether these are partitions in the form of our emitter and Trident's Kafka spout."""
    return all(
        isinstance(each, list | tuple) and len(each) == 2 and isinstance(each[0], str) and type(each[1]) is int
        for each in partitions
    )


def _bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@contextmanager
def _errors() -> Iterator[None]:
    """Convert errors of ZooKeeper to the port's."""
    try:
        yield
    except OffsetStoreError as error:
        raise BatchStoreError(error.message, cure=error.cure, passes=error.passes) from error

"""The metadata of batches in tables of SQLite or PostgreSQL.

Each call is one transaction. It reads the claim's epoch with a lock; once a successor has claimed, a replaced
coordinator and its emitters can store nothing.

The claiming process holds a *lease* while it lives: with SQLite a lock on a file beside the database, with PostgreSQL
an advisory lock of its connection. While the lease is held, topologies with other ids are refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from downspout.batches.core.protocol import (
    BatchRange,
    CoordinatorState,
    decode_range,
    decode_state,
    encode_attempts,
    encode_range,
)
from downspout.batches.stores import (
    BatchIdInUseError,
    BatchStoreContext,
    BatchStoreError,
    PartitionId,
    StaleCoordinatorError,
)
from downspout.offsets.stores.database import (
    Database,
    DatabaseError,
    PassesError,
    create_tables,
    told,
    transaction,
)
from downspout.offsets.stores.sql import open_database
from downspout.offsets.stores.sqlite import path_of
from downspout.system.files import FileLock

T = TypeVar("T")
SETTING, PASSWORD_SETTING = "batch.store", "batch.store_password"
BATCHES, PARTITIONS, RANGES = "downspout_batches", "downspout_batch_partitions", "downspout_batch_ranges"
CREATE = (
    f"{BATCHES} (batch_id TEXT PRIMARY KEY, owner TEXT NOT NULL, topology TEXT NOT NULL, epoch BIGINT NOT NULL, "
    "current_txid BIGINT, attempts TEXT NOT NULL)",
    f"{PARTITIONS} (batch_id TEXT NOT NULL, txid BIGINT NOT NULL, partitions TEXT NOT NULL, "
    "PRIMARY KEY (batch_id, txid))",
    f"{RANGES} (batch_id TEXT NOT NULL, kafka_partition TEXT NOT NULL, txid BIGINT NOT NULL, metadata TEXT NOT NULL, "
    "PRIMARY KEY (batch_id, kafka_partition, txid))",
)
WAIT_S = 4.0
"""Longest wait for a lock, before a later retry: no call of a spout may take longer than 5 s."""


class Lease(Protocol):
    """A lock on a batch id, held until its process ends."""

    def hold(self) -> bool:
        """Acquire it if no other process holds it; return whether we hold it."""

    def release(self) -> None:
        """Release it."""


class FileLease:
    """A lock on a file beside the database."""

    def __init__(self, path: Path, batch_id: str) -> None:
        name = hashlib.sha256(batch_id.encode()).hexdigest()[:12]
        self._lock = FileLock(path.with_name(f"{path.name}.{name}.lease"))
        self._is_held = False

    def hold(self) -> bool:
        """Hold it."""
        self._is_held = self._is_held or self._lock.acquire(0.0)
        return self._is_held

    def release(self) -> None:
        """Give it back."""
        self._lock.release()
        self._is_held = False


class AdvisoryLease:
    """An advisory lock of a PostgreSQL connection: re-entrant, and lost with the connection."""

    def __init__(self, database: Database, batch_id: str) -> None:
        digest = hashlib.sha256(f"downspout batches {batch_id}".encode()).digest()
        self._database, self._number = database, int.from_bytes(digest[:8], "big", signed=True)

    def hold(self) -> bool:
        """Hold it."""
        return bool(self._database.run(f"SELECT pg_try_advisory_lock({self._number})")[0][0])

    def release(self) -> None:
        """Give it back."""
        self._database.run("SELECT pg_advisory_unlock_all()")


def open_sql_metadata(location: str, context: BatchStoreContext) -> SqlMetadata:
    """Open the store in the database at a URL."""
    database = open_database(
        location, SETTING, password=context.password, password_setting=PASSWORD_SETTING, wait_s=WAIT_S
    )
    return SqlMetadata(database, context)


class SqlMetadata:
    """See :class:`~downspout.batches.stores.BatchStore`."""

    def __init__(self, database: Database, context: BatchStoreContext) -> None:
        self.location = database.location
        self._database, self._context, self._id = database, context, context.id
        self._is_ready = False
        is_sqlite = self.location.startswith("sqlite:")
        lease = FileLease(path_of(self.location, SETTING), self._id) if is_sqlite else AdvisoryLease(database, self._id)
        self._lease: Lease = lease
        self._share = "" if is_sqlite else " FOR SHARE"  # SQLite has one writer at a time
        self._update = "" if is_sqlite else " FOR UPDATE"

    # --- the claim ---

    def claim(self, owner: str) -> int:
        """See :meth:`~downspout.batches.stores.BatchStore.claim`."""
        mark = self._database.mark
        with self._ready(), transaction(self._database):
            self._database.run(
                f"INSERT INTO {BATCHES} (batch_id, owner, topology, epoch, attempts) "
                f"VALUES ({', '.join([mark] * 3)}, 0, '{{}}') ON CONFLICT (batch_id) DO NOTHING",
                (self._id, owner, self._context.topology),
            )
            look = f"SELECT owner, topology, epoch FROM {BATCHES} WHERE batch_id = {mark}{self._update}"
            before, topology, epoch = self._database.run(look, (self._id,))[0]
            if not self._lease.hold() and before != owner:
                raise BatchIdInUseError(
                    f"{self.location}: batch.id {self._id} is in use by topology {topology} ({before}), which is "
                    "running",
                    cure="another batch.id; or stop that topology",
                )
            self._database.run(
                f"UPDATE {BATCHES} SET owner = {mark}, topology = {mark}, epoch = {mark} WHERE batch_id = {mark}",
                (owner, self._context.topology, epoch + 1, self._id),
            )
        return int(epoch) + 1

    def release(self, epoch: int) -> None:
        """Release the claim."""
        with self._ready():
            self._lease.release()

    # --- the coordinator ---

    def load_coordinator(self) -> CoordinatorState | None:
        """Return the coordinator's state."""
        mark = self._database.mark
        rows = self._read(f"SELECT current_txid, attempts FROM {BATCHES} WHERE batch_id = {mark}", (self._id,))
        if not rows or rows[0][0] is None:
            return None
        current, attempts = rows[0]
        return self._parsed("its coordinator", lambda: decode_state(current, json.loads(attempts)))

    def save_coordinator(self, epoch: int, state: CoordinatorState) -> None:
        """Store the coordinator's state."""
        mark = self._database.mark
        with self._writing(epoch):
            self._lease.hold()  # again, if it was lost with the connection
            self._database.run(
                f"UPDATE {BATCHES} SET current_txid = {mark}, attempts = {mark} WHERE batch_id = {mark}",
                (state.current, _text(encode_attempts(state)), self._id),
            )

    def load_partitions(self, txid: int) -> Sequence[Any] | None:
        """Return the partitions of a transaction."""
        mark = self._database.mark
        statement = f"SELECT partitions FROM {PARTITIONS} WHERE batch_id = {mark} AND txid = {mark}"
        for (text,) in self._read(statement, (self._id, txid)):
            found: Sequence[Any] = self._parsed(f"the partitions of transaction {txid}", partial(json.loads, text))
            return found
        return None

    def save_partitions(self, epoch: int, txid: int, partitions: Sequence[Any]) -> None:
        """Store the partitions of a transaction."""
        mark = self._database.mark
        with self._writing(epoch):
            self._database.run(
                f"INSERT INTO {PARTITIONS} (batch_id, txid, partitions) VALUES ({', '.join([mark] * 3)}) "
                "ON CONFLICT (batch_id, txid) DO UPDATE SET partitions = excluded.partitions",
                (self._id, txid, _text(partitions)),
            )

    # --- ranges ---

    def load_ranges(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, Mapping[int, BatchRange]]:
        """Return the ranges of these partitions, by transaction; one statement, so all of a transaction or none."""
        if not partitions:
            return {}
        mark, found = self._database.mark, dict[PartitionId, dict[int, BatchRange]]()
        rows = self._read(
            f"SELECT kafka_partition, txid, metadata FROM {RANGES} WHERE batch_id = {mark} "
            f"AND kafka_partition IN ({', '.join([mark] * len(partitions))}) ORDER BY kafka_partition, txid",
            (self._id, *partitions),
        )
        for name, txid, text in rows:
            where = f"{name} in transaction {txid}"
            found.setdefault(name, {})[txid] = self._parsed(where, partial(_range, text))
        return found

    def list_partitions(self) -> Collection[PartitionId]:
        """Return all partitions with stored ranges."""
        mark = self._database.mark
        statement = f"SELECT DISTINCT kafka_partition FROM {RANGES} WHERE batch_id = {mark} ORDER BY kafka_partition"
        return [name for (name,) in self._read(statement, (self._id,))]

    def save_ranges(self, epoch: int, txid: int, ranges: Mapping[PartitionId, BatchRange]) -> None:
        """Store the ranges of a transaction."""
        rows = [(self._id, name, txid, _text(encode_range(found))) for name, found in sorted(ranges.items())]
        mark = self._database.mark
        with self._writing(epoch):
            if rows:
                self._database.run_many(
                    f"INSERT INTO {RANGES} (batch_id, kafka_partition, txid, metadata) "
                    f"VALUES ({', '.join([mark] * 4)}) ON CONFLICT (batch_id, kafka_partition, txid) "
                    "DO UPDATE SET metadata = excluded.metadata",
                    rows,
                )

    def delete_ranges(self, epoch: int, from_txid: int, partitions: Collection[PartitionId]) -> None:
        """Delete the ranges of these partitions from a transaction on."""
        with self._writing(epoch):
            self._delete(partitions, f"AND txid >= {self._database.mark}", from_txid)

    def delete_below(self, epoch: int, txid: int, partitions: Collection[PartitionId]) -> None:
        """Delete ranges and partitions below a transaction."""
        mark = self._database.mark
        with self._writing(epoch):
            self._delete(partitions, f"AND txid < {mark}", txid)
            self._database.run(f"DELETE FROM {PARTITIONS} WHERE batch_id = {mark} AND txid < {mark}", (self._id, txid))

    def _delete(self, partitions: Collection[PartitionId], which: str, *values: int) -> None:
        mark = self._database.mark
        if rows := [(self._id, name, *values) for name in sorted(partitions)]:
            self._database.run_many(
                f"DELETE FROM {RANGES} WHERE batch_id = {mark} AND kafka_partition = {mark} {which}", rows
            )

    def close(self) -> None:
        """Close the connection, which releases the claim."""
        if isinstance(self._lease, FileLease):
            self._lease.release()
        self._database.close()

    # --- inside ---

    def _read(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._ready():
            return self._database.run(statement, values)

    def _parsed(self, what: str, parse: Callable[[], T]) -> T:
        try:
            return parse()
        except (ValueError, RecursionError) as error:
            raise BatchStoreError(
                f"{self.location}: batch.id {self._id}, {what}: {error}", cure="restore that row from a backup"
            ) from None

    @contextmanager
    def _writing(self, epoch: int) -> Iterator[None]:
        """Open a transaction in which the claim with this epoch is valid."""
        with self._ready(), transaction(self._database):
            look = f"SELECT epoch, topology FROM {BATCHES} WHERE batch_id = {self._database.mark}{self._share}"
            rows = self._database.run(look, (self._id,))
            if not rows or rows[0][0] != epoch:
                now = f"epoch {rows[0][0]}, of topology {rows[0][1]}" if rows else "its row was deleted"
                raise StaleCoordinatorError(
                    f"{self.location}: batch.id {self._id} was claimed by another process (epoch {epoch} has ended; "
                    f"now {now}); nothing was stored",
                    cure="one topology for each batch.id",
                )
            yield

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """Create the tables on first use, and convert errors to the port's."""
        try:
            with told(self._database, f"batches {self._id}"):
                if not self._is_ready:
                    create_tables(self._database, CREATE)
                    self._is_ready = True
                yield
        except DatabaseError as error:
            passes = isinstance(error, PassesError)
            raise BatchStoreError(error.message, cure=error.cure or None, passes=passes) from error


def _range(text: str) -> BatchRange:
    return decode_range(json.loads(text))


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

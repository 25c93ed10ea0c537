"""Offsets in a table of SQLite or PostgreSQL; opens the database at a URL, with its driver loaded at first use."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from downspout.errors import coordinates
from downspout.kafka.port import TopicPartition
from downspout.offsets.stores.database import (
    Database,
    DatabaseError,
    PassesError,
    check_url,
    create_tables,
    told,
    transaction,
)
from downspout.spout.ports import PASSWORD_SETTING, OffsetStoreError, StaleOwnerError, StoreContext, StoredOffset

TABLE = "downspout_offsets"
CREATE = f"""{TABLE} (
  consumer_group TEXT NOT NULL, topic TEXT NOT NULL, kafka_partition BIGINT NOT NULL,
  next_offset BIGINT, metadata TEXT NOT NULL, epoch BIGINT NOT NULL,
  PRIMARY KEY (consumer_group, topic, kafka_partition)
)"""
WAIT_S = 4.0
"""How long a lock is waited for: no call of a spout may take longer than 5 s. It tries again later."""


def open_database(
    url: str, setting: str, *, password: str | None = None, password_setting: str = "", wait_s: float
) -> Database:
    """Return the database at a URL: ``sqlite:///flights.db``, ``postgresql://user@host/name``.

    Args:
        setting: where the URL was given, for messages.
        password: resolved; None: the driver uses its own sources.
        password_setting: where the password may be given.
        wait_s: how long a statement waits for a lock.

    Raises:
        ConfigError: the URL is malformed, or contains a password.
        MissingExtraError: the driver is not installed.
    """
    check_url(url, setting, password_setting)
    if url.startswith("sqlite:"):
        from downspout.offsets.stores.sqlite import SqliteDatabase

        return SqliteDatabase(url, setting, wait_s)
    from downspout.offsets.stores.postgres import PostgresDatabase

    return PostgresDatabase(url, password, wait_s)


def open_sql_store(location: str, context: StoreContext) -> SqlStore:
    """Open the store at a URL of a database."""
    database = open_database(
        location, context.setting, password=context.password, password_setting=PASSWORD_SETTING, wait_s=WAIT_S
    )
    return SqlStore(database, context.group)


class SqlStore:
    """The offsets of one consumer group. See :class:`~downspout.spout.ports.OffsetStore`."""

    def __init__(self, database: Database, group: str) -> None:
        self.location = database.location
        self._database, self._group = database, group
        mark = database.mark
        of_one = f"consumer_group = {mark} AND topic = {mark} AND kafka_partition = {mark}"
        key = "(consumer_group, topic, kafka_partition)"
        self._load = f"SELECT next_offset, metadata, epoch FROM {TABLE} WHERE {of_one} AND next_offset IS NOT NULL"
        self._list = (
            f"SELECT topic, kafka_partition, next_offset, metadata, epoch FROM {TABLE} "
            f"WHERE consumer_group = {mark} AND next_offset IS NOT NULL ORDER BY topic, kafka_partition"
        )
        insert = f"INSERT INTO {TABLE} (consumer_group, topic, kafka_partition, next_offset, metadata, epoch)"
        # Both statements lock the row, so of two owners one comes after the other, and sees what that one has done.
        self._claim = (
            f"{insert} VALUES ({mark}, {mark}, {mark}, NULL, '', 1) "
            f"ON CONFLICT {key} DO UPDATE SET epoch = {TABLE}.epoch + 1 RETURNING next_offset, metadata, epoch"
        )
        self._store = (
            f"{insert} VALUES ({', '.join([mark] * 6)}) ON CONFLICT {key} DO UPDATE SET "
            "next_offset = excluded.next_offset, metadata = excluded.metadata, epoch = excluded.epoch "
            f"WHERE {TABLE}.epoch <= excluded.epoch RETURNING epoch"
        )
        self._delete = f"DELETE FROM {TABLE} WHERE {of_one}"
        self._is_ready = False

    def load(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, StoredOffset]:
        """Return the entries of these partitions."""
        found: dict[TopicPartition, StoredOffset] = {}
        with self._ready():
            for tp in partitions:
                for row in self._database.run(self._load, (self._group, *tp)):
                    found[tp] = StoredOffset(*row)
        return found

    def claim(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, StoredOffset]:
        """Claim. If the answer to the commit is lost, the next claim has an even higher epoch."""
        found: dict[TopicPartition, StoredOffset] = {}
        with self._ready(), transaction(self._database):
            for tp in sorted(partitions):  # in one order: two that lock the same rows never wait for each other
                found[tp] = StoredOffset(*self._database.run(self._claim, (self._group, *tp))[0])
        return found

    def store(self, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        """Store all or none. If the answer to the commit is lost, the owner stores again: the epoch distinguishes it
        from later owners.
        """
        if not offsets:
            return
        with self._ready(), transaction(self._database):
            for tp in sorted(offsets):
                stored = offsets[tp]
                values = (self._group, *tp, stored.offset, stored.metadata, stored.epoch)
                if not self._database.run(self._store, values):
                    raise StaleOwnerError(
                        f"{self.location}: {coordinates(*tp)} of group {self._group} was claimed by another "
                        f"process (epoch {stored.epoch} has ended); nothing was stored",
                        cure="one topology for each group",
                    )

    def list(self) -> Mapping[TopicPartition, StoredOffset]:
        """Return all of the group."""
        with self._told():
            # Who lists may have mistyped the URL: nothing is made of it.
            rows = self._database.run(self._list, (self._group,)) if self._database.columns(TABLE) else []
        return {TopicPartition(topic, partition): StoredOffset(*rest) for topic, partition, *rest in rows}

    def delete(self, partitions: Collection[TopicPartition]) -> None:
        """Forget all or none."""
        if not partitions:
            return
        with self._ready(), transaction(self._database):
            for tp in sorted(partitions):
                self._database.run(self._delete, (self._group, *tp))

    def close(self) -> None:
        """Release the connection."""
        self._database.close()

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """Create the table at first use."""
        with self._told():
            if not self._is_ready:
                create_tables(self._database, [CREATE])
                self._is_ready = True
            yield

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Convert errors to those of the port."""
        try:
            with told(self._database, f"group {self._group}"):
                yield
        except DatabaseError as error:
            _raise(error)


def _raise(error: DatabaseError) -> NoReturn:
    passes = isinstance(error, PassesError)
    raise OffsetStoreError(error.message, cure=error.cure or None, passes=passes) from error

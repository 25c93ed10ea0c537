"""Keyed state in tables of SQLite or PostgreSQL.

A task's part of an attempt is one database transaction. It first updates the state's row, which names the latest
attempt: a later attempt replaces it, an earlier one is refused. The row stays locked until the end, shared among the
tasks of one attempt. So a later attempt begins only after all transactions of earlier ones, and fences them from then
on.

Keys and values are JSON: ``["the"]`` and ``[3, 120, 118]`` in the form of the state's kind
(``downspout/batches/core/state_values.py``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from downspout.batches.core.protocol import Attempt
from downspout.batches.core.state_values import StateKind
from downspout.batches.stores import BatchStoreError, Key, StaleAttemptError, StateContext, check_meaning, key_of
from downspout.formatting import safe_repr
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

SETTING, PASSWORD_SETTING = "state.store", "state.password"
STATES, VALUES, MEANINGS = "downspout_states", "downspout_state", "downspout_state_meanings"
CREATE = (
    f"{STATES} (state TEXT PRIMARY KEY, owner TEXT NOT NULL, kind TEXT NOT NULL, "
    "txid BIGINT NOT NULL, first_attempt BIGINT NOT NULL, attempt BIGINT NOT NULL)",
    f"{VALUES} (state TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, "
    "txid BIGINT NOT NULL, attempt BIGINT NOT NULL, PRIMARY KEY (state, key))",
    f"{MEANINGS} (state TEXT PRIMARY KEY, meaning TEXT NOT NULL)",
)
KEYS_MAX = 500
"""Keys of one statement."""
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_decode = json.JSONDecoder().decode
"""Made once, because they run for each key of a batch and ``json.dumps`` would make an encoder for each call. NaN is
refused: it is not JSON, and as a key it is not equal to itself."""


def open_sql_state(location: str, context: StateContext) -> SqlState:
    """Open a state in the database at a URL; create it if missing, and check its owner."""
    database = open_database(
        location, SETTING, password=context.password, password_setting=PASSWORD_SETTING, wait_s=context.wait_s
    )
    state = SqlState(database, context)
    try:
        state.open()
    except BaseException:
        state.close()
        raise
    return state


def read_state(location: str, name: str, password: str | None = None) -> dict[Key, Any]:
    """Return the committed value of each key of a state, without writing anything.

    Keys with a null value are left out: an attempt stored them, but the one that replaced it did not have them.

    Args:
        location: the URL of the database, as in ``state.store``.
        name: of the state: ``state.name``, or the component's.
        password: for the database.

    Raises:
        BatchStoreError: the database cannot be read, or has no such state.
    """
    where = f"{location}: state {name}"
    if location.startswith("sqlite:") and not path_of(location, SETTING).exists():
        raise BatchStoreError(f"{where} does not exist: there is no such file", cure="the URL of state.store")
    database = open_database(location, SETTING, password=password, password_setting=PASSWORD_SETTING, wait_s=10.0)
    mark = database.mark
    with _errors(), closing(database):
        kinds = database.run(f"SELECT kind FROM {STATES} WHERE state = {mark}", (name,))
        if not kinds:
            raise BatchStoreError(f"{where} does not exist", cure=f"one of SELECT state FROM {STATES}")
        rows = database.run(f"SELECT key, value FROM {VALUES} WHERE state = {mark} ORDER BY key", (name,))
    found = parsed(where, rows)
    if kinds[0][0] == StateKind.NON_TRANSACTIONAL.value:
        return found
    return {key: form[1] for key, form in found.items() if form[1] is not None}


class SqlState:
    """See :class:`~downspout.batches.stores.StateStore`."""

    def __init__(self, database: Database, context: StateContext) -> None:
        self.location = database.location
        self.database, self._context = database, context
        mark = database.mark
        self._add = (
            f"INSERT INTO {STATES} (state, owner, kind, txid, first_attempt, attempt) "
            f"VALUES ({mark}, {mark}, {mark}, -1, -1, -1) ON CONFLICT (state) DO NOTHING"
        )
        self._begin = (
            f"UPDATE {STATES} SET first_attempt = CASE WHEN txid = {mark} THEN first_attempt ELSE {mark} END, "
            f"txid = {mark}, attempt = {mark} "
            f"WHERE state = {mark} AND owner = {mark} AND (txid < {mark} OR (txid = {mark} AND attempt < {mark}))"
        )
        self._note = f"UPDATE {STATES} SET txid = {mark} WHERE state = {mark} AND txid < 0"
        self._look = f"SELECT owner, kind, txid, first_attempt, attempt FROM {STATES} WHERE state = {mark}"
        self._lock = "" if self.location.startswith("sqlite:") else " FOR SHARE"  # SQLite has one writer at a time
        self._list = f"SELECT key, value FROM {VALUES} WHERE state = {mark} ORDER BY key"

    def open(self) -> None:
        """Create the tables and the state's row if missing; raise if the state belongs to others."""
        context = self._context
        with self._errors():
            create_tables(self.database, CREATE)
            with transaction(self.database):
                self.database.run(self._add, (context.name, context.owner, context.kind.value))
                self._check(self.database.run(self._look, (context.name,)), None)
                self._check_meaning()

    def _check_meaning(self) -> None:
        """Store the meaning of keys and values if it is new, and compare it with the stored one."""
        context, mark = self._context, self.database.mark
        if not context.meaning:
            return
        self.database.run(
            f"INSERT INTO {MEANINGS} (state, meaning) VALUES ({mark}, {mark}) ON CONFLICT (state) DO NOTHING",
            (context.name, context.meaning),
        )
        found = self.database.run(f"SELECT meaning FROM {MEANINGS} WHERE state = {mark}", (context.name,))
        check_meaning(f"{self.location}: state {context.name}", found[0][0], context.meaning)

    @contextmanager
    def transaction(self, attempt: Attempt) -> Iterator[SqlStateTransaction]:
        """Begin an attempt, and store what the block writes."""
        txid, number, context = *attempt, self._context
        with self._errors(), transaction(self.database):
            if context.kind is StateKind.NON_TRANSACTIONAL:
                self.database.run(self._note, (txid, context.name))
            else:
                values = (txid, number, txid, number, context.name, context.owner, txid, txid, number)
                self.database.run(self._begin, values)
            first = self._check(self.database.run(self._look + self._lock, (context.name,)), attempt)
            yield SqlStateTransaction(self.database, context, attempt, is_replay=number > first)

    def _check(self, rows: list[tuple[Any, ...]], attempt: Attempt | None) -> int:
        """Return the first attempt of this transaction; raise if we must not change the state."""
        context = self._context
        where = f"{self.location}: state {context.name}"
        if not rows:
            raise BatchStoreError(
                f"{where} is gone from table {STATES}", cure="start again; do not delete rows from that table"
            )
        owner, kind, *newest = rows[0]
        if owner != context.owner:
            raise BatchStoreError(
                f"{where} belongs to the batches of {owner}, but these are of {context.owner}: their transaction "
                "numbers are unrelated",
                cure=f"another state.name; or batch.id={owner}, if that topology no longer runs",
            )
        if kind != context.kind.value:
            raise BatchStoreError(
                f"{where} is {kind}, but its values cannot be read as {context.kind.value}",
                cure=f"state.kind={kind}, or another state.name",
            )
        txid, first, number = newest
        is_fenced = attempt is not None and context.kind is not StateKind.NON_TRANSACTIONAL
        if is_fenced and (txid, number) != attempt:
            raise StaleAttemptError(
                f"{where} already holds {Attempt(txid, number)}; {attempt} comes too late and was not stored",
                cure="if batch.store was emptied or replaced: another state.name, or empty the state too",
            )
        return int(first)

    def newest(self) -> int | None:
        """Return the last applied transaction; the first one for a non-transactional state."""
        with self._errors():
            rows = self.database.run(self._look, (self._context.name,))
        return int(rows[0][2]) if rows and rows[0][2] >= 0 else None

    def read_all(self) -> Mapping[Key, Any]:
        """Return all keys."""
        with self._errors():
            return self._parsed(self.database.run(self._list, (self._context.name,)))

    def _parsed(self, rows: Iterable[tuple[Any, ...]]) -> dict[Key, Any]:
        return parsed(f"{self.location}: state {self._context.name}", rows)

    def close(self) -> None:
        """Release the connection."""
        self.database.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with _errors(), told(self.database, f"state {self._context.name}"):
            yield


class SqlStateTransaction:
    """See :class:`~downspout.batches.stores.StateTransaction`."""

    def __init__(self, database: Database, context: StateContext, attempt: Attempt, *, is_replay: bool) -> None:
        self.database, self._state, self._attempt, self._is_replay = database, context.name, attempt, is_replay
        self._where = f"{database.location}: state {context.name}"
        self._texts: dict[Key, str] = {}  # of the keys read, most of which are written too

    def read(self, keys: Collection[Key]) -> Mapping[Key, Any]:
        """Return the stored form of each existing key."""
        mark, found = self.database.mark, dict[Key, Any]()
        asked = {_text(self._where, key): key for key in keys}
        self._texts.update(zip(asked.values(), asked, strict=True))
        wanted = list(asked)
        for start in range(0, len(wanted), KEYS_MAX):
            some = wanted[start : start + KEYS_MAX]
            statement = (
                f"SELECT key, value FROM {VALUES} WHERE state = {mark} AND key IN ({', '.join([mark] * len(some))})"
            )
            for text, value in self.database.run(statement, (self._state, *some)):
                found[asked[text]] = _parsed_value(self._where, text, value)
        return found

    def replaced(self) -> Mapping[Key, Any]:
        """Return the forms stored by earlier attempts of this transaction."""
        if not self._is_replay:
            return {}
        mark = self.database.mark
        statement = f"SELECT key, value FROM {VALUES} WHERE state = {mark} AND txid = {mark} AND attempt < {mark}"
        return parsed(self._where, self.database.run(statement, (self._state, *self._attempt)))

    def write(self, values: Mapping[Key, Any]) -> None:
        """Store the form of each key."""
        mark = self.database.mark
        statement = (
            f"INSERT INTO {VALUES} (state, key, value, txid, attempt) VALUES ({', '.join([mark] * 5)}) "
            "ON CONFLICT (state, key) DO UPDATE SET value = excluded.value, txid = excluded.txid, "
            "attempt = excluded.attempt"
        )
        texts = {
            self._texts.get(key) or _text(self._where, key): _value(self._where, key, value)
            for key, value in values.items()
        }
        # Sorted, so that two writers of the same keys cannot deadlock.
        rows = [(self._state, key, text, *self._attempt) for key, text in sorted(texts.items())]
        if rows:
            self.database.run_many(statement, rows)


def parsed(where: str, rows: Iterable[tuple[Any, ...]]) -> dict[Key, Any]:
    """Return the keys and values of untrusted rows."""
    found: dict[Key, Any] = {}
    for text, value in rows:
        try:
            key = key_of(_decode(text))
        except (ValueError, TypeError, RecursionError):
            raise _foreign(where, text, value) from None
        found[key] = _parsed_value(where, text, value)
    return found


def _parsed_value(where: str, key: str, text: str) -> Any:
    try:
        return _decode(text)
    except (ValueError, TypeError, RecursionError):
        raise _foreign(where, key, text) from None


def _foreign(where: str, key: str, text: str) -> BatchStoreError:
    return BatchStoreError(
        f"{where}, key {key}: {text[:60]!r} is not JSON in Downspout's form", cure="restore that row, or delete it"
    )


def _json(value: Any) -> str:
    text = _encode(value)
    if not text.isascii():
        text.encode()  # raises for a lone surrogate; the database's error would not name the key
    return text


def _text(where: str, key: Key) -> str:
    try:
        return _json(list(key))
    except (TypeError, ValueError) as error:
        raise BatchStoreError(
            f"{where}, key {safe_repr(key)} is not JSON ({error})",
            cure="a key of texts and numbers, made by an upstream bolt",
        ) from None


def _value(where: str, key: Key, value: Any) -> str:
    try:
        return _json(value)
    except (TypeError, ValueError) as error:
        raise BatchStoreError(
            f"{where}, key {_text(where, key)}: {safe_repr(value)} is not JSON ({error})",
            cure="a value of numbers, texts and lists",
        ) from None


@contextmanager
def _errors() -> Iterator[None]:
    """Convert errors of the database to the port's."""
    try:
        yield
    except DatabaseError as error:
        passes = isinstance(error, PassesError)
        raise BatchStoreError(error.message, cure=error.cure or None, passes=passes) from error

"""StateBolt: applies batches to keyed values in SQLite or PostgreSQL, each batch exactly once.

::

    coordinator, lines = KafkaBatches.spec(topics=["lines"], fields=["value"])
    split = SplitBolt.spec(inputs=[lines])
    counts = StateBolt.spec(
        coordinator=coordinator, inputs={split: Grouping.fields("word")},
        store="sqlite:///counts.db", key="word", update="count",
    )

It holds the tuples of each batch, and applies them at the batch's commit: in the order of the transactions, each task's
share in one database transaction. The state's kind (``downspout/batches/core/state_values.py``) decides how a value is
stored, and so what a repeated batch does to it: ``opaque``, ``transactional`` or ``non_transactional``.

It emits ``(attempt, key …, value)`` for each key that a batch has changed. ``state.update`` sets how values change: a
name (``count``, ``sum:field``), or your own function or class (``downspout/batches/updates.py``). For anything else,
override :meth:`StateBolt.apply`, which may get, put and update any keys.

``docs/how-to/count-in-batches.md`` begins with a word count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Any, ClassVar

from streamparse import Grouping
from streamparse.dsl.bolt import ShellBoltSpec

from downspout.batches.core.held import Held
from downspout.batches.core.protocol import ATTEMPT, BATCH, COMMIT, CONTROL, FIRST_TXID, MICRO_BATCHES, SUCCESS, Attempt
from downspout.batches.core.state_values import Commit, ForeignValueError, StateKind
from downspout.batches.stores import BatchStoreError, Key, StateContext, check_state_store, open_state_store
from downspout.batches.updates import (
    StateInput,
    Update,
    apply,
    check_beginning,
    check_pair,
    faults,
    key_maker,
    meaning_of,
    path_of,
    update_of,
)
from downspout.component import Bolt, input_fields, task_number
from downspout.errors import USER_ERRORS, ConfigError, RecordError, TopologyError, UserError
from downspout.formatting import safe_repr, short_repr
from downspout.kafka.retry_gate import LogThrottle
from downspout.offsets.stores.database import PassesError
from downspout.settings.folders import of_project_url
from downspout.settings.secrets import with_secrets
from downspout.settings.table import SETTINGS, component_config, parse_scope
from downspout.wire.side_streams import config_of

logger = logging.getLogger("downspout.batches")

AGAIN = "the batch comes again"
NO_ATTEMPT = object()
"""Equal to nothing that a bolt may emit, unlike None."""

__all__ = ["StateBolt"]


class _Batch:
    """What a task holds of one attempt."""

    __slots__ = ("is_applied", "tuples", "waiting")

    def __init__(self) -> None:
        self.tuples: dict[Key, Any] = {}  # by key, what the update holds
        self.waiting: list[Any] = []  # not acked yet: the beginning was not seen
        self.is_applied = False


class StateBolt(Bolt):
    """Keeps a value for each key.

    >>> spec = StateBolt.spec(store="sqlite:///counts.db", key=["word"], update="count")
    >>> spec.outputs["default"].output_fields
    ['attempt', 'word', 'count']
    """

    settings_scopes: ClassVar[tuple[str, ...]] = ("state", "batch")
    lock_wait_s: ClassVar[float] = 10.0
    """How long a commit waits for a lock that another process holds; then its batch fails and is tried again."""
    auto_ack = False
    auto_anchor = False

    @classmethod
    def spec(
        cls,
        name: str | None = None,
        inputs: Any = None,
        par: int | dict[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        coordinator: Any = None,
        **settings: Any,
    ) -> ShellBoltSpec:
        """Put the bolt into a topology.

        Args:
            name: default: the name of the topology's attribute.
            inputs: the bolts whose tuples have the key, with a fields grouping on it if there are several tasks.
            par: how many tasks.
            config: Storm's settings for this component, and Downspout's with their prefix.
            coordinator: the batches' coordinator, from ``KafkaBatches.spec``.
            settings: settings without the prefix ``state.``; ``update`` may be a function or a class.

        Raises:
            ConfigError: a setting is missing, unknown or malformed.
        """
        if "update" in settings:
            settings["update"] = path_of(settings["update"])
        given = {**(config or cls.config or {}), **component_config("state", settings)}
        if coordinator is not None:
            inputs = inputs if isinstance(inputs, Mapping) else dict.fromkeys(inputs or (), Grouping.SHUFFLE)
            inputs = {**inputs, **{coordinator[stream]: Grouping.ALL for stream in CONTROL}}
            theirs = config_of(coordinator)
            given = {**{key: theirs[key] for key in ("batch.id", "batch.kind") if key in theirs}, **given}
        return super().spec(name, inputs, par, given)

    @classmethod
    def outputs_of(cls, config: Mapping[str, Any]) -> list[str]:
        """Return the output fields: the attempt, the key and the value."""
        for setting, example in (("store", '"sqlite:///counts.db"'), ("key", '["word"]'), ("update", '"count"')):
            if not config.get(f"state.{setting}"):
                raise ConfigError(f"state.{setting} is not set", cure=f"{setting}={example}")
        check_state_store(str(config["state.store"]))
        keys = list(SETTINGS["state.key"].parse(config["state.key"], "spec"))
        return [ATTEMPT, *keys, update_of(str(config["state.update"])).name]

    # --- the start ---

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the settings, and open the state.

        Raises:
            ConfigError, TopologyError: a setting makes no sense, or an input lacks a field.
            BatchStoreError: the state cannot be used, or belongs to other batches.
        """
        settings = parse_scope(with_secrets(storm_conf), "state")
        self.update: Update = update_of(settings["update"])
        self.kind = StateKind(settings["kind"])
        self._keys: list[str] = settings["key"]
        self._check_inputs(context, is_told=not storm_conf.get(MICRO_BATCHES))
        check_pair(storm_conf)
        self.state = open_state_store(
            of_project_url(settings["store"], "state.store", storm_conf),
            StateContext(
                settings["name"] or str(self.component_name),
                self.kind,
                str(storm_conf.get("batch.id") or storm_conf.get("topology.name", "")),
                settings["password"],
                self.lock_wait_s,
                meaning_of(self._keys, settings["update"]),
            ),
        )
        self._knows_beginning = not settings["exactly_once"]
        self._held = Held(_Batch)
        self._shapes: dict[type, tuple[int, Callable[[Any], Key]]] = {}  # by the type of a stream's values
        self._now: tuple[Any, _Batch | None, bool] = (NO_ATTEMPT, None, False)  # the attempt of the last tuple
        self._throttle = LogThrottle()
        self._figures = {"batches_applied": 0, "batches_refused": 0, "keys_updated": 0}

    def _check_inputs(self, context: Mapping[str, Any], *, is_told: bool) -> None:
        groupings = context.get("source->stream->grouping", {})
        inputs = []
        for (source, stream), each in input_fields(context).items():
            grouping = groupings.get(source, {}).get(stream, {})
            inputs.append(StateInput(source, stream, each, str(grouping.get("type", "")), grouping.get("fields") or ()))
        for what, cure in faults(inputs, self._keys, self.update, task_number(context)[1], is_told=is_told):
            raise TopologyError(f"{self.component_name}: {what}", cure=cure)

    # --- tuples ---

    def process(self, tup: Any) -> None:
        """Hold a data tuple, or follow the coordinator's control tuple."""
        values = tup.values
        if tup.stream not in CONTROL:
            self._hold(tup, values)
            return
        attempt = Attempt.of(values[0])
        self._now = (NO_ATTEMPT, None, False)
        if tup.stream == COMMIT:
            self._commit(tup, attempt)
            return
        if tup.stream == SUCCESS:
            self._held.success(attempt.txid)
        elif tup.stream == BATCH and self._held.begin(attempt):
            batch = self._held.of(attempt)
            assert batch is not None
            self.ack_many([*batch.waiting, tup])
            batch.waiting.clear()
            return
        self.ack(tup)

    def process_many(self, tups: list[Any]) -> int:
        """Hold the leading tuples of one stream and one attempt, if its beginning was seen; return how many."""
        _, source, stream, _, values = tups[0]
        if stream in CONTROL:
            return 0
        place, key_of = self._shape_of(values)
        attempt = values[place]
        if not Attempt.may_be(attempt):
            return 0
        batch, has_begun = self._newest(attempt)
        if batch is None or not has_begun or batch.is_applied:
            return 0
        # The attempt is mostly the same object. Equal ones count too: over Storm's pipe each tuple has its own.
        rows = [
            each[4]
            for each in takewhile(
                lambda tup: (
                    tup[2] == stream and tup[1] == source and (tup[4][place] is attempt or tup[4][place] == attempt)
                ),
                tups,
            )
        ]
        try:
            self.update.add_many(batch.tuples, list(map(key_of, rows)), rows)
        except USER_ERRORS as error:
            # It is unknown how many tuples were added. All tuples of an attempt share one tree: fail it, and the batch
            # begins again. If the error were raised, the tuples would wait for their timeout.
            self.fail_because(tups[0], self._not_taken(attempt, rows, error))
        self.ack_many(tups[: len(rows)])
        return len(rows)

    def _not_taken(self, attempt: Any, rows: Sequence[Any], error: UserError) -> RecordError:
        """Return the error; it names the first of these tuples that also fails by itself, if any does."""
        guilty, cause = None, error
        for values in rows:
            try:
                hash(self._shape_of(values)[1](values))
                self.update.add(None, values)
            except USER_ERRORS as its_own:
                guilty, cause = values, its_own
                break
        given = {} if guilty is None else {key: each for key, each in guilty._asdict().items() if key != ATTEMPT}
        about = f", on {short_repr(given)}" if given else ""
        return RecordError(
            f"{self.component_name}: {Attempt.of(attempt)}: {type(cause).__name__}: {cause}{about}",
            cure="leave such tuples out in the bolt before, or correct state.key or state.update",
        )

    def _newest(self, given: Any) -> tuple[_Batch | None, bool]:
        """Return an attempt's batch (None if there is a newer attempt), and whether its beginning was seen."""
        if given is not self._now[0] and given != self._now[0]:
            attempt = Attempt.of(given)
            self._now = (given, self._held.of(attempt), self._held.has_begun(attempt))
        return self._now[1:]

    def _shape_of(self, values: Any) -> tuple[int, Callable[[Any], Key]]:
        """Return the index of the attempt in values of this type, and the function that makes their key."""
        found = self._shapes.get(type(values))
        if found is None:
            place = values._fields.index
            found = self._shapes[type(values)] = place(ATTEMPT), key_maker([place(name) for name in self._keys])
        return found

    def _hold(self, tup: Any, values: Any) -> None:
        place, key_of = self._shape_of(values)
        batch, has_begun = self._newest(values[place])
        if batch is None:  # of an older attempt
            self.ack(tup)
            return
        if batch.is_applied:
            about = f"{self.component_name}: {Attempt.of(values[place])}"
            late = f"{about}: a tuple of {tup.component!r} came after the commit"
            cure = "anchor what bolts emit; and no state behind another one, which emits at its commit"
            self.fail_because(tup, TopologyError(late, cure=cure))
            return
        try:
            key = key_of(values)
            batch.tuples[key] = self.update.add(batch.tuples.get(key), values)
        except USER_ERRORS as error:
            raise self._not_taken(values[place], [values], error) from error
        if has_begun:
            self.ack(tup)
        else:
            batch.waiting.append(tup)

    # --- the commit ---

    def _commit(self, tup: Any, attempt: Attempt) -> None:
        """Apply an attempt and emit what has changed; if that is impossible, fail the batch."""
        batch = self._held.of(attempt) if self._held.may_commit(attempt) else None
        if batch is None:
            why = f"its beginning was not seen by this process, which may have lost what came of it: {AGAIN}"
            self._refuse(tup, BatchStoreError(f"{self.component_name}: {attempt}: {why}", passes=True))
            return
        try:
            changed = self.apply_attempt(attempt, batch.tuples)
        except (BatchStoreError, ForeignValueError) as error:
            passes = isinstance(error, BatchStoreError) and error.passes
            refused = BatchStoreError(f"{self.component_name}: {attempt}: {error}", passes=passes)
            refused.__cause__ = error.__cause__
            self._refuse(tup, refused)
            return
        batch.is_applied = True
        for row in changed:
            self.emit([attempt, *row], anchors=[tup])
        self.ack(tup)

    def _refuse(self, tup: Any, error: BatchStoreError) -> None:
        """Fail a commit. If the next attempt may succeed, it never counts as an error of the bolt."""
        self._figures["batches_refused"] += 1
        if not error.passes:
            self.fail_because(tup, error)
            return
        is_told = isinstance(error.__cause__, PassesError)  # a database that is away, full or locked
        if not is_told and self._throttle.due("refused", int(self.clock.monotonic() * 1000)):
            logger.warning("%s", error)
        self.fail(tup)

    def apply_attempt(self, attempt: Attempt, held: Mapping[Key, Any]) -> Sequence[Sequence[Any]]:
        """Apply what is held of an attempt, and return the rows to emit. For engines that make the batches.

        Raises:
            BatchStoreError: the state cannot be written, or a later attempt was begun.
            ForeignValueError: a stored value is of another kind, or of a later transaction.
        """
        rows = self._apply(attempt, held)
        self._figures["batches_applied"] += 1
        return rows

    def _apply(self, attempt: Attempt, held: Mapping[Key, Any]) -> Sequence[Sequence[Any]]:
        if not self._knows_beginning:
            check_beginning(self.state, str(self.component_name), attempt.txid, FIRST_TXID)
        elif not held and attempt.attempt == 0:
            return []  # nothing to store, and no earlier attempt whose keys must be reverted
        applied = apply(self.state, self.kind, attempt, held, self.apply)
        self._knows_beginning = True
        self._figures["keys_updated"] += applied.changed
        return applied.rows

    def apply(self, state: Commit[Key], batch: Mapping[Key, Any]) -> Iterable[Sequence[Any]]:
        """Apply a batch to the state; return the rows to emit, each of key and value.

        A subclass may do anything here that depends only on the state and the batch. It runs again if the batch does.

        Args:
            state: ``get``, ``put`` and ``update`` of any keys; what is changed is stored when this returns.
            batch: for each key, what the update holds of the tuples: a combiner's value, or a list of their values.
        """
        for key, held in batch.items():
            state.update(key, partial(self._updated, key, held))
        return [(*key, state.get(key)) for key in batch]

    def _updated(self, key: Key, held: Any, value: Any) -> Any:
        try:
            return self.update.apply(value, held)
        except USER_ERRORS as error:
            raise RecordError(
                f"{self.component_name}: key {safe_repr(key)}, whose value is {short_repr(value)}: "
                f"{type(error).__name__}: {error}",
                cure="leave such tuples out in the bolt before, or correct state.update",
            ) from error

    def report(self) -> Mapping[str, float]:
        """Return how many batches were applied and refused here, and how many keys were updated."""
        return self._figures

    def close(self) -> None:
        """Release the connection."""
        if hasattr(self, "state"):
            with suppress(Exception):
                self.state.close()

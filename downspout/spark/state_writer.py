"""Apply each micro-batch of a Spark query to keyed values in a database, exactly once, from ``foreachBatch``.

::

    write = state_writer(store="sqlite:////data/counts.db", name="counts", key="word", update="count")
    words.writeStream.foreachBatch(write).option("checkpointLocation", "/data/checkpoint").start()

Settings, values and tables are those of a StateBolt (``bolts/state.py``). A micro-batch is a transaction, numbered by
Spark's log: a repeated one has the same records and is skipped. Numbers are specific to a checkpoint, so the state
belongs to the checkpoint: a query with another one is rejected.
"""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from downspout.batches.core.protocol import Attempt
from downspout.batches.core.state_values import Commit, StateKind
from downspout.batches.stores import Key, StateContext, open_state_store
from downspout.batches.updates import (
    Update,
    apply,
    check_beginning,
    check_pair,
    combined,
    key_maker,
    meaning_of,
    path_of,
    update_of,
)
from downspout.errors import ConfigError
from downspout.settings.folders import of_project_url
from downspout.settings.secrets import with_secrets
from downspout.settings.table import component_config, parse_scope
from downspout.spark.kafka_sink import QUERY_ID

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def state_writer(**settings: Any) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that applies micro-batches to a state.

    Args:
        settings: those of a StateBolt, without the prefix ``state.``; ``name`` is required, and ``update`` may be a
            function or a class.

    Raises:
        ConfigError: a setting is missing, unknown or malformed, or the kind would not be exactly once.
    """
    if "update" in settings:
        settings["update"] = path_of(settings["update"])
    conf = component_config("state", settings)
    values = parse_scope(with_secrets(conf), "state")
    if not values["name"]:
        raise ConfigError("state.name is not set, and on Spark no component gives it one", cure='name="counts"')
    check_pair({**conf, "batch.kind": "transactional"})  # Spark's batches are transactional
    update, kind = update_of(values["update"]), StateKind(values["kind"])

    def changed(state: Commit[Key], batch: Mapping[Key, Any]) -> Sequence[Sequence[Any]]:
        for key, held in batch.items():
            state.put(key, update.apply(state.get(key), held))
        return ()

    def write(frame: DataFrame, number: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if not query:
            raise ConfigError("the state's frame is not of a streaming query", cure="df.writeStream.foreachBatch(…)")
        batch = _folded(frame, update, values["update"], values["key"])
        meaning = meaning_of(values["key"], values["update"])
        context = StateContext(values["name"], kind, f"query {query}", values["password"], meaning=meaning)
        with closing(open_state_store(of_project_url(values["store"], "state.store", conf), context)) as store:
            if values["exactly_once"]:
                check_beginning(store, values["name"], number, first=0)
            apply(store, kind, Attempt(number, 0), batch, changed)

    return write


def _folded(frame: DataFrame, update: Update, text: str, keys: Sequence[str]) -> dict[Key, Any]:
    """Return the update's intermediate value by key: combined by Spark's tasks, or all rows for a reducer."""
    held: dict[Key, Any] = {}
    key_of = key_maker(range(len(keys)))
    if update.combiner is None:
        for row in frame.toLocalIterator():
            key = key_of([row[name] for name in keys])
            held[key] = update.add(held.get(key), row)
        return held
    for row in frame.mapInArrow(_folding(text, keys), "key string, value string").collect():
        key = key_of(json.loads(row["key"]))
        held[key] = combined(update.combiner, held.get(key), json.loads(row["value"]))
    return held


def _folding(text: str, keys: Sequence[str]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for Spark's tasks that yields one value per key."""

    def fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        row_type: Any = namedtuple  # the fields are only known at run time
        update, held, key_of = update_of(text), dict[Key, Any](), key_maker(range(len(keys)))
        for batch in batches:
            made = row_type("Row", batch.schema.names)
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                row = made(*values)
                key = key_of([getattr(row, name) for name in keys])
                held[key] = update.add(held.get(key), row)
        texts = {"key": [json.dumps(list(key)) for key in held], "value": [json.dumps(each) for each in held.values()]}
        yield pa.RecordBatch.from_pydict(texts, schema=pa.schema([("key", pa.string()), ("value", pa.string())]))

    return fold

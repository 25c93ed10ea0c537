"""AggregateBolt: writes partial aggregates into a Parquet directory, and counts each row exactly once.

A flush aggregates the rows that the directory's log does not cover, and writes one row per key. A reader combines these
rows (``downspout.spark.read.finish_aggregates``, or GROUP BY in any tool). The log records which records were
aggregated.

With a fields grouping on the keys, one task has all rows of a key; without it the result is the same, in more rows.

A key may be a window of a timestamp: ``window(departure, 10 minutes)``, or sliding ``window(departure, 1 hour, 10
minutes)``. Windows need no state: late rows and rows out of order are added to their windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from streamparse import Stream

from downspout.errors import ConfigError, TopologyError
from downspout.settings.table import SETTINGS
from downspout.sink.aggregation import Aggregation
from downspout.sink.identity import Mask
from downspout.sink.log_entry import Partition
from downspout.sink.row_sink import Batch
from downspout.sink.schema import Columns
from downspout.sink.sink_bolt import SinkBolt
from downspout.sink.writer import Build, Times

LATE = "late"
"""The stream of rows that arrived after all their windows were final, and the metric that counts them."""


class AggregateBolt(SinkBolt):
    """Computes ``parquet.aggregates`` by ``parquet.keys``; ``parquet.schema`` declares the columns of both.

    >>> schema, keys = {"word": "string", "at": "timestamp"}, ["word", "window(at, 1 hour)"]
    >>> spec = AggregateBolt.spec(directory="out", schema=schema, keys=keys, aggregates=["count"])
    >>> spec.component_cls.__name__
    'AggregateBolt'
    """

    figures = (*SinkBolt.figures, LATE)
    streams_by_setting: ClassVar = {LATE: 'late="stream"'}  # by name, what declares a stream that it may have

    @classmethod
    def outputs_of(cls, config: Mapping[str, Any]) -> list[Any]:
        """Return the stream ``late`` if ``parquet.late`` is ``stream``."""
        columns = cls.columns_of(config)
        if SETTINGS["parquet.late"].parse(config.get("parquet.late", "add"), "spec") != "stream":
            return []
        if _aggregation(config, columns).window is None:
            raise ConfigError("parquet.late = stream: without a window no row is late", cure="parquet.late=add")
        return [Stream(fields=[*columns.names, "origin"], name=LATE)]

    @classmethod
    def columns_of(cls, conf: Mapping[str, Any]) -> Columns:
        """Return the input columns; keys and aggregates are checked with them."""
        columns = super().columns_of(conf)
        _aggregation(conf, columns)
        return columns

    @classmethod
    def folder_columns(cls, columns: Columns, conf: Mapping[str, Any]) -> Columns:
        """Return the keys, and a stand-in for the aggregates: only keys may name folders."""
        keys = _list(conf, "parquet.keys")
        return Columns([c for c in columns.columns if c.name in keys] + [columns.columns[0]] * bool(keys))

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read keys and aggregates, and the settings of every sink."""
        self._aggregation = _aggregation(storm_conf, self.columns_of(storm_conf))
        self._window = self._aggregation.window
        self._latest: dict[Partition, int] = {}
        super().initialize(storm_conf, context)
        if self.settings["late"] == "stream" and not self.has_origins:
            raise TopologyError(
                f"{self.component_name}: parquet.late = stream, and its tuples have no field origin: a late row that "
                "comes again would be another",
                cure="hand the spout's field origin on; or parquet.late=add",
            )

    @classmethod
    def fingerprint(cls, conf: Mapping[str, Any]) -> list[str]:
        """Return columns, keys and aggregates: partial results of different ones must not mix."""
        return [*super().fingerprint(conf), *_aggregation(conf, cls.columns_of(conf)).words]

    def builder(self, table: pa.Table) -> Build:
        """Return the function that aggregates the selected rows."""
        return lambda mask, _: self._aggregation.fold(table.filter(pa.array(mask)), self.writer.log.watermark.value)

    # --- event time -------------------------------------------------------------------------------------

    def parts(self, batch: Batch) -> Iterable[Batch]:
        """Note the latest times of the whole flush: its last part logs them, when no row is held any more."""
        if self._window is not None:
            times: Any = batch.table.column(self._window.column)
            known = np.asarray(self._window.panes(times).is_valid())
            self._latest = batch.identities.latest(np.asarray(times.cast(pa.int64()).fill_null(0)), known)
        return super().parts(batch)

    def times(self, batch: Batch) -> Times | None:
        """Return the latest times of the rows, and a function that finds those late by a watermark."""
        if (window := self._window) is None:
            return None
        late = partial(window.late, batch.table.column(window.column))
        return Times(self._latest if self.is_last_part else {}, late, self.settings["late"] == "stream")

    def set_aside(self, batch: Batch, rows: Mask) -> None:
        """Emit late rows to the stream ``late``. They are not in the directory: lost ones come again."""
        late = batch.only(rows)
        columns = [*(late.table.column(name).to_pylist() for name in self.columns.names), late.identities.origins()]
        for anchor, *values in zip(late.ids, *columns, strict=True):
            self.emit(values, stream=LATE, anchors=[anchor])

    def report(self) -> Mapping[str, float]:
        """Return what every sink reports, and with a window how many rows were late."""
        figures = super().report()
        return figures if self._window else {name: value for name, value in figures.items() if name != LATE}


def _aggregation(conf: Mapping[str, Any], columns: Columns) -> Aggregation:
    return Aggregation.parse(_list(conf, "parquet.keys"), _list(conf, "parquet.aggregates"), columns)


def _list(conf: Mapping[str, Any], key: str) -> list[str]:
    return list(SETTINGS[key].parse(conf.get(key, []), "spec"))

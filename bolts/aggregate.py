"""AggregateBolt: writes partial aggregates into a Parquet directory, and counts each row exactly once.

At a flush it adds up the rows that the directory's log does not cover, and writes one row per key. A reader finishes
them (``downspout.spark.read.finish_aggregates``, or GROUP BY in any tool). The log remembers which records were added
up.

With a fields grouping on the keys, one task has all rows of a key; without it the result is the same, in more rows.

A key may be a window of a timestamp: ``window(departure, 10 minutes)``, or sliding ``window(departure, 1 hour, 10
minutes)``. No state is held for it: late rows and rows out of order are added where they belong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from downspout.settings.table import SETTINGS
from downspout.sink.columns.aggregate import Aggregation
from downspout.sink.columns.schema import Columns
from downspout.sink.sink_bolt import SinkBolt
from downspout.sink.writer import Build


class AggregateBolt(SinkBolt):
    """Computes ``parquet.aggregates`` by ``parquet.keys``; ``parquet.schema`` declares the columns of both.

    >>> schema, keys = {"word": "string", "at": "timestamp"}, ["word", "window(at, 1 hour)"]
    >>> spec = AggregateBolt.spec(directory="out", schema=schema, keys=keys, aggregates=["count"])
    >>> spec.component_cls.__name__
    'AggregateBolt'
    """

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
        """Read keys and aggregates besides what every sink reads."""
        self._aggregation = _aggregation(storm_conf, self.columns_of(storm_conf))
        super().initialize(storm_conf, context)

    @classmethod
    def fingerprint(cls, conf: Mapping[str, Any]) -> list[str]:
        """Return keys and aggregates besides the columns: partial results of other ones do not mix."""
        return [*super().fingerprint(conf), *_aggregation(conf, cls.columns_of(conf)).words]

    def builder(self, table: pa.Table) -> Build:
        """Return the function that folds the rows that are wanted."""
        return lambda mask, _: self._aggregation.fold(table.filter(pa.array(mask)))


def _aggregation(conf: Mapping[str, Any], columns: Columns) -> Aggregation:
    return Aggregation.parse(_list(conf, "parquet.keys"), _list(conf, "parquet.aggregates"), columns)


def _list(conf: Mapping[str, Any], key: str) -> list[str]:
    return list(SETTINGS[key].parse(conf.get(key, []), "spec"))

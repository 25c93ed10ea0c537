"""What all sinks share: hold tuples, flush them together, ack what is durable.

Tuples are held until there are enough rows or bytes, or the oldest is old enough; a tick every second looks. A flush
acks after its log entry exists. Tuples whose rows are in the directory already are acked and dropped; a tuple that
does not fit the columns fails alone, with the field named. A flush that raises acks nothing: on Storm the process ends,
the tuples time out and come again; the local engine stops the run with the error.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from streamparse.dsl.bolt import ShellBoltSpec

from downspout import config as configuration
from downspout.component import Bolt
from downspout.errors import ConfigError, RecordError, TopologyError
from downspout.ledger.origin import Origin
from downspout.parquet.disk import Disk
from downspout.parquet.identity import Identities, Mask
from downspout.parquet.schema import Columns, Rejected
from downspout.parquet.writer import SinkWriter

LOOK_EVERY = 128
"""Tuples between two looks at the size of what is held."""
ROW_BYTES = 64
"""What a held tuple costs besides its texts, roughly."""
ORIGIN = "origin"
_TEXTS = (str, bytes)

Row = Sequence[Any]
Getter = Callable[[Row], Row]


class SinkBolt(Bolt):
    """Base of ParquetBolt and AggregateBolt."""

    auto_ack = False
    auto_anchor = False
    settings_scopes: ClassVar[tuple[str, ...]] = ("parquet",)
    disk: Disk = Disk()

    @classmethod
    def spec(
        cls,
        name: str | None = None,
        inputs: Any = None,
        par: int | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> ShellBoltSpec:
        """Put the sink into a topology.

        Args:
            name: default: the name of the topology's attribute.
            inputs: streamparse's inputs; their tuples should have the field ``origin``.
            par: how many tasks; all of them write to one directory.
            config: Storm's settings for this component, and ours by their whole names.
            settings: those of ``downspout settings parquet`` without the prefix; ``schema`` may be a dict
                ``{"carrier": "string", "delay": "int16"}``.

        Raises:
            ConfigError: a setting is unknown, malformed or out of range, or the schema is.
        """
        if isinstance(schema := settings.get("schema"), Mapping):
            settings["schema"] = [f"{column}:{kind}" for column, kind in schema.items()]
        given = {
            "topology.tick.tuple.freq.secs": 1,
            **(config or {}),
            **configuration.component_config("parquet", settings),
        }
        cls.columns_of(given)
        return ShellBoltSpec(
            cls,
            command="streamparse_run",
            script=f"{cls.__module__}.{cls.__name__}",
            name=name,
            inputs=inputs,
            par=par,
            config=given,
            outputs=[],
        )

    @classmethod
    def columns_of(cls, conf: Mapping[str, Any]) -> Columns:
        """Return the columns that a configuration declares, checked with the settings that refer to them."""
        declared = configuration.SETTINGS["parquet.schema"].parse(conf.get("parquet.schema"), "spec")
        if not declared:
            raise ConfigError("parquet.schema is not set", cure='schema={"carrier": "string", "delay": "int16"}')
        columns = Columns.parse(declared)
        folders = configuration.SETTINGS["parquet.partition_by"].parse(conf.get("parquet.partition_by", []), "spec")
        cls.folder_columns(columns, conf).check_folders(folders)
        return columns.with_folders(folders)

    @classmethod
    def folder_columns(cls, columns: Columns, conf: Mapping[str, Any]) -> Columns:
        """Return the columns that may name folders."""
        return columns

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the settings, find the fields in the inputs, and open the directory."""
        self.settings = configuration.parse_scope(storm_conf, "parquet")
        self.columns = self.columns_of(storm_conf)
        self._getters, self._has_origin = _find_fields(context, self.columns, self.component_name)
        self._sized = [i for i, column in enumerate(self.columns.columns) if column.sized]
        self._start_over()
        self._figures = dict.fromkeys(("rows", "files", "bytes", "covered", "rejected", "flushes"), 0)
        partition_by = self.settings["partition_by"]
        self.writer = SinkWriter(
            Path(self.settings["directory"]),
            topology=str(storm_conf.get("topology.name", "")),
            columns=self.fingerprint(),
            writer=f"{self.component_name}-{self.task_id}-{uuid.uuid4().hex[:12]}",
            partition_by=partition_by,
            compression=self.settings["compression"],
            disk=self.disk,
            clock=self.clock,
        )
        self.writer.open()

    def _start_over(self) -> None:
        self._held: list[Any] = []
        self._rows: list[Row] = []
        """The columns of the first so many of those held."""
        self._look_at = min(LOOK_EVERY, self.settings["flush_rows"])
        self._bytes = 0
        self._oldest: float | None = None

    def fingerprint(self) -> list[str]:
        """Return what must stay the same for a directory."""
        return [column.declared for column in self.columns.columns]

    # --- the hot path -----------------------------------------------------------------------------------

    def process(self, tup: Any) -> None:
        """Hold a tuple; flush when enough are held."""
        held = self._held
        held.append(tup)
        if len(held) >= self._look_at:
            self._look()

    def _look(self) -> None:
        now = self.clock.monotonic()
        if self._oldest is None:
            self._oldest = now
        held, known = self._held, len(self._rows)
        self._pick()
        new = self._rows[known:]
        self._bytes += ROW_BYTES * len(new)
        for at in self._sized:
            self._bytes += sum(len(row[at]) for row in new if type(row[at]) in _TEXTS)
        too_old = now - self._oldest >= self.settings["flush_age_s"]
        if len(held) >= self.settings["flush_rows"] or self._bytes >= self.settings["flush_bytes"] or too_old:
            self.drain()
        else:
            self._look_at = min(len(held) + LOOK_EVERY, self.settings["flush_rows"])

    def process_tick(self, tup: Any) -> None:
        """Flush what has become old enough."""
        if self._held:
            now = self.clock.monotonic()
            if self._oldest is None:
                self._oldest = now
            elif now - self._oldest >= self.settings["flush_age_s"]:
                self.drain()
        self.ack(tup)

    def _pick(self) -> None:
        """Take the columns out of those tuples of which that was not done yet."""
        getters = self._getters
        # 1, 2 and 4 are component, stream and values: places are faster than names.
        self._rows += [getters[tup[1], tup[2]](tup[4]) for tup in self._held[len(self._rows) :]]

    # --- the flush --------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Flush what is held now."""
        held = self._held
        if not held:
            return
        self._pick()
        rows, width = self._rows, len(self.columns.columns)
        origins, rejected = self._origins(rows)
        good = _without(rows, rejected)
        values = list(zip(*good, strict=True))[:width] if good else [()] * width
        table, misfits = self.columns.table(values)
        if misfits or rejected:
            rejected = _combine(rejected, misfits, len(rows))
            origins = _without(origins, misfits)
        identities = Identities.of(origins) if self._has_origin else Identities.none(table.num_rows)
        if table.num_rows:
            flushed = self.writer.flush(identities, self.builder(table, identities))
            for name in ("rows", "files", "bytes", "covered"):
                self._figures[name] += getattr(flushed, name)
            self._figures["flushes"] += 1
        self._start_over()
        self._settle(held, rejected)

    @abstractmethod
    def builder(self, table: pa.Table, identities: Identities) -> Callable[[Mask], pa.Table]:
        """Return the function that makes what is written from the rows that a mask leaves."""

    def _origins(self, rows: Sequence[Row]) -> tuple[Sequence[Origin], list[Rejected]]:
        """Return the origins of the rows that have a good one, and the rows that have not."""
        if not self._has_origin:
            return [], []
        origins: list[Origin] = []
        rejected: list[Rejected] = []
        of = Origin.of
        for number, row in enumerate(rows):
            try:
                origins.append(of(row[-1]))
            except ValueError as error:
                rejected.append(Rejected(number, str(error)))
        return origins, rejected

    def _settle(self, held: Sequence[Any], rejected: Sequence[Rejected]) -> None:
        """Ack what is durable; fail what does not fit."""
        reasons = {reject.row: reject.reason for reject in rejected}
        self._figures["rejected"] += len(reasons)
        ack = self.ack
        for number, tup in enumerate(held):
            if number in reasons:
                self.fail_because(tup, RecordError(f"{self.component_name}: {reasons[number]}"))
            else:
                ack(tup)

    def report(self) -> Mapping[str, float]:
        """Return what was written, and what is held."""
        return {**self._figures, "held": len(self._held)}


def _find_fields(
    context: Mapping[str, Any], columns: Columns, component: str
) -> tuple[dict[tuple[str, str], Getter], bool]:
    """Return for each input the function that picks the columns (and the origin, last) out of a tuple's values."""
    inputs = {
        (source, stream): list(fields)
        for source, streams in context.get("source->stream->fields", {}).items()
        for stream, fields in streams.items()
    }
    has_origin = bool(inputs) and all(ORIGIN in fields for fields in inputs.values())
    getters: dict[tuple[str, str], Getter] = {}
    for (source, stream), fields in inputs.items():
        if missing := [name for name in columns.names if name not in fields]:
            raise TopologyError(
                f"{component}: its input {source}:{stream} has no field {', '.join(missing)}",
                cure=f"a schema with columns out of: {', '.join(fields)}",
            )
        places = [fields.index(name) for name in columns.names]
        if has_origin:
            places.append(fields.index(ORIGIN))
        getters[source, stream] = itemgetter(*places) if len(places) > 1 else _single(places[0])
    return getters, has_origin


def _single(place: int) -> Getter:
    return lambda values: (values[place],)


def _without(rows: Sequence[Any], rejected: Sequence[Rejected]) -> Sequence[Any]:
    if not rejected:
        return rows
    bad = {reject.row for reject in rejected}
    return [row for number, row in enumerate(rows) if number not in bad]


def _combine(first: Sequence[Rejected], later: Sequence[Rejected], count: int) -> list[Rejected]:
    """Return all rejects by the row's number among all; ``later`` counts without the rows of ``first``."""
    bad = {reject.row for reject in first}
    left = [number for number in range(count) if number not in bad]
    return [*first, *(Rejected(left[reject.row], reject.reason) for reject in later)]

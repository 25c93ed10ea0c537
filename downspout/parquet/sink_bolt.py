"""What all sinks share: hold rows, flush them together, ack what is durable.

Rows are held until there are enough of them or enough bytes, or the oldest is old enough; a tick every second looks. A
flush acks after its log entry exists. Tuples whose rows are in the directory already are acked and dropped; a tuple
that does not fit the columns fails alone and at once, with the field named. A flush that raises acks nothing and
forgets what it held: the local engine stops the run with the error; on Storm the tuples time out and come again.
"""

from __future__ import annotations

import logging
import os
import uuid
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from streamparse.dsl.bolt import ShellBoltSpec

from downspout import config as configuration
from downspout.component import Bolt, input_fields
from downspout.errors import ConfigError, RecordError, TopologyError, coordinates
from downspout.ledger.origin import Origin
from downspout.parquet.buffer import Batch, Buffer, Picker, picker
from downspout.parquet.disk import Disk
from downspout.parquet.inputs import check_names, name_of
from downspout.parquet.schema import Columns
from downspout.parquet.writer import Build, SinkWriter
from downspout.wording import counted

logger = logging.getLogger("downspout.parquet")

BLOCK_ROWS = 512
"""Tuples that are converted at once; fewer at the start and where rows are large."""
BLOCK_ROWS_FIRST = 16
BLOCKS_PER_FLUSH = 8
"""A block is at most so large a part of ``flush_bytes``, by the mean size of the rows before."""
LOOK_EVERY = 11
"""Of the tuples that wait to be converted, one of so many is measured, and stands for the others: to measure each would
cost a tenth of the whole. So rows that become large all at once are noticed after 11 of them. Not bounded: large rows
that come exactly between those that are measured (a prime number makes that unlikely), up to ``BLOCK_ROWS``, and
lists, whose length says little about their size."""
ORIGIN = "origin"


class SinkBolt(Bolt):
    """Base of ParquetBolt and AggregateBolt."""

    auto_ack = False
    auto_anchor = False
    settings_scopes: ClassVar[tuple[str, ...]] = ("parquet",)
    disk: Disk = Disk()
    writer_class: type[SinkWriter] = SinkWriter
    """An engine that commits in another place puts another one here, before ``initialize``."""

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
                ``{"carrier": "string", "delay": "int16"}``, ``input_names`` one ``{"enrich": "parse"}``.

        Raises:
            ConfigError: a setting is unknown, malformed or out of range, or the schema is.
        """
        if isinstance(schema := settings.get("schema"), Mapping):
            settings["schema"] = [f"{column}:{kind}" for column, kind in schema.items()]
        if isinstance(names := settings.get("input_names"), Mapping):
            settings["input_names"] = [f"{source}={step}" for source, step in names.items()]
        ticks = {"topology.tick.tuple.freq.secs": 1}
        return super().spec(name, inputs, par, {**ticks, **(config or {})}, **settings)

    @classmethod
    def outputs_of(cls, config: Mapping[str, Any]) -> list[Any]:
        """Return that nothing is emitted, once the columns have proved to be right."""
        cls.columns_of(config)
        return []

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
        self._inputs = _find_fields(context, self.columns, self.component_name)
        with_origins = [name_of(*given) for given, (_, has_origin) in self._inputs.items() if has_origin]
        self.has_origins = bool(with_origins)
        self._waiting: list[Any] = []
        self._block = min(BLOCK_ROWS_FIRST, self.settings["flush_rows"])
        self._next_look = min(LOOK_EVERY, self._block)
        self._weight = 0
        """roughly the bytes of the tuples that wait"""
        self._buffer = Buffer(self.columns)
        self._oldest: float | None = None
        self._told_covered = False
        self._figures = dict.fromkeys(("rows", "files", "bytes", "covered", "rejected", "flushes"), 0)
        partition_by = self.settings["partition_by"]
        self.writer = self.writer_class(
            directory_of(self.settings["directory"], storm_conf),
            topology=str(storm_conf.get("topology.name", "")),
            component=str(self.component_name),
            columns=self.fingerprint(),
            writer=f"{quote(str(self.component_name), safe='')}-{self.task_id}-{uuid.uuid4().hex[:12]}",
            inputs=with_origins,
            input_names=check_names(self.settings["input_names"], with_origins),
            partition_by=partition_by,
            compression=self.settings["compression"],
            generation=self.settings["generation"],
            disk=self.disk,
            clock=self.clock,
        )
        self.writer.open()

    def fingerprint(self) -> list[str]:
        """Return what must stay the same for a directory."""
        return [column.declared for column in self.columns.columns]

    # --- the hot path -----------------------------------------------------------------------------------

    def process(self, tup: Any) -> None:
        """Hold a tuple; once a block is together, convert it, and flush when enough is held."""
        waiting = self._waiting
        waiting.append(tup)
        if len(waiting) >= self._next_look:
            self._weigh(tup)

    def _weigh(self, tup: Any) -> None:
        """Convert what waits if that is a block, or if the newest tuple shows that it is large."""
        count = len(self._waiting)
        if count < self._block:
            size = 0
            for value in tup[4]:
                if value.__class__ is str or value.__class__ is bytes:
                    size += len(value)
            self._weight += size * LOOK_EVERY
            if self._weight < self.settings["flush_bytes"] // BLOCKS_PER_FLUSH:
                self._next_look = min(count + LOOK_EVERY, self._block)
                return
        self._look()

    def _look(self) -> None:
        settings, buffer, now = self.settings, self._buffer, self.clock.monotonic()
        if self._oldest is None:
            self._oldest = now
        self._convert()
        mean = max(1, buffer.bytes // len(buffer)) if len(buffer) else 1
        too_old = now - self._oldest >= settings["flush_age_s"]
        if len(buffer) >= settings["flush_rows"] or buffer.bytes >= settings["flush_bytes"] or too_old:
            self._flush()
        affordable = settings["flush_bytes"] // (BLOCKS_PER_FLUSH * mean)
        self._block = max(1, min(2 * self._block, BLOCK_ROWS, affordable, settings["flush_rows"] - len(buffer)))
        self._next_look = min(LOOK_EVERY, self._block)

    def process_tick(self, tup: Any) -> None:
        """Flush what has become old enough."""
        if self._waiting or len(self._buffer):
            now = self.clock.monotonic()
            if self._oldest is None:
                self._oldest = now
            elif now - self._oldest >= self.settings["flush_age_s"]:
                self.drain()
        self.ack(tup)

    def _convert(self) -> None:
        """Turn the tuples that wait into arrays; fail those that do not fit."""
        waiting, self._waiting, self._weight = self._waiting, [], 0
        self._next_look = min(LOOK_EVERY, self._block)
        for (component, stream), tuples in self._by_input(waiting):
            pick, has_origin = self._inputs[component, stream]
            # 0 and 4 are id and values: places are faster than names.
            columns = pick([tup[4] for tup in tuples])
            origins = columns.pop() if has_origin else None
            rejected = self._buffer.add([tup[0] for tup in tuples], columns, origins, name_of(component, stream))
            self._figures["rejected"] += len(rejected)
            for misfit in rejected:
                place = _place(origins[misfit.row]) if origins is not None else ""
                self.fail_because(tuples[misfit.row], RecordError(f"{place}{self.component_name}: {misfit.reason}"))

    def _by_input(self, tuples: Sequence[Any]) -> Sequence[tuple[tuple[str, str], Sequence[Any]]]:
        """Return the tuples of each component and stream."""
        if len(self._inputs) == 1:
            return [(next(iter(self._inputs)), tuples)] if tuples else []
        parts: dict[tuple[str, str], list[Any]] = {}
        for tup in tuples:
            parts.setdefault((tup[1], tup[2]), []).append(tup)
        return list(parts.items())

    # --- the flush --------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Flush what is held now."""
        self._convert()
        self._flush()

    def _flush(self) -> None:
        self._oldest = None
        # Taken before anything can go wrong: after an error nothing is held, and what was held is neither acked nor
        # failed, so it times out and comes again. A try for the same rows at every tuple would help nobody.
        batch = self._without_impostors(self._buffer.take())
        if not batch.ids:
            return
        flushed = self.writer.flush(batch.identities, self.builder(batch.table))
        for name in ("rows", "files", "bytes", "covered"):
            self._figures[name] += getattr(flushed, name)
        self._figures["flushes"] += 1
        if not flushed.rows:
            self._say_that_nothing_was_written(batch)
        ack = self.ack
        for tuple_id in batch.ids:
            ack(tuple_id)

    def _say_that_nothing_was_written(self, batch: Batch) -> None:
        """Say once that all rows of a flush were there already: somebody may be waiting for them to be written anew."""
        if self._told_covered:
            return
        self._told_covered = True
        logger.warning(
            "%s: all %s of a flush (from %s) are in %s already, and none was written. After a restart that is as it "
            "should be. To process records anew: parquet.generation=%d, or another directory, together with another "
            "kafka.group and kafka.start=EARLIEST",
            self.component_name, counted(len(batch.ids), "row"), batch.identities.place(0), self.writer.directory,
            self.writer.log.generation + 1,
        )  # fmt: skip

    def _without_impostors(self, batch: Batch) -> Batch:
        """Fail rows with the identity of another row of this flush that are not that row.

        A replayed row equals the first one, and is dropped. One that differs is another row, made of the same record by
        a bolt that handed the origin on unchanged; taking it for a replay would lose it without a word.
        """
        table, identities = batch.table, batch.identities.under(self.writer.steps)
        bad = [
            again
            for first, again in identities.repeats()
            if repr(table.slice(first, 1).to_pylist()) != repr(table.slice(again, 1).to_pylist())
        ]
        if not bad:
            return batch
        good = np.ones(len(batch.ids), dtype=bool)
        good[bad] = False
        self._figures["rejected"] += len(bad)
        for row in bad:
            error = RecordError(
                f"{identities.place(row)}: {self.component_name}: two different rows have the same identity",
                cure="give each its own, with origin.child(component, index), in the bolt that makes them",
            )
            self.fail_because(batch.ids[row], error)
        ids = [one for one, kept in zip(batch.ids, good.tolist(), strict=True) if kept]
        return Batch(ids, table.filter(pa.array(good)), batch.identities.only(good))

    @abstractmethod
    def builder(self, table: pa.Table) -> Build:
        """Return the function that makes what is written from the rows that a mask leaves."""

    def report(self) -> Mapping[str, float]:
        """Return what was written, and what is held."""
        return {**self._figures, "held": len(self._buffer) + len(self._waiting)}


def _place(origin: Any) -> str:
    """Name the record that a row is of, for the beginning of a message; empty where that is not known."""
    try:
        at = Origin.of(origin)
    except ValueError:
        return ""
    return f"{coordinates(at.topic, at.partition, at.offset)}: "


def directory_of(directory: str, conf: Mapping[str, Any]) -> Path:
    """Return where the files go.

    Raises:
        ConfigError: the directory is relative, and a Storm worker has no folder of the project's that it could be in.

    >>> directory_of("/data/out", {"storm.cluster.mode": "distributed"}).as_posix()
    '/data/out'
    """
    path = Path(directory)
    if path.is_absolute():
        return path
    # Storm's whole configuration reaches a component there; on the other engines this key is not in it.
    if "storm.cluster.mode" in conf and not os.environ.get("DOWNSPOUT_PROJECT"):
        raise ConfigError(
            f"parquet.directory = {directory!r} is relative, and a Storm worker's folder is deleted with the topology",
            cure="an absolute path that all workers share, or DOWNSPOUT_PROJECT in the workers' environment",
        )
    return configuration.project() / path


def _find_fields(
    context: Mapping[str, Any], columns: Columns, component: str
) -> dict[tuple[str, str], tuple[Picker, bool]]:
    """Return for each input how to pick the columns (and the origin, last) and whether it has an origin."""
    inputs: dict[tuple[str, str], tuple[Picker, bool]] = {}
    for (source, stream), fields in input_fields(context).items():
        if missing := [name for name in columns.names if name not in fields]:
            raise TopologyError(
                f"{component}: its input {source}:{stream} has no field {', '.join(missing)}",
                cure=f"a schema with columns out of: {', '.join(fields)}",
            )
        has_origin = ORIGIN in fields
        wanted = [*columns.names, ORIGIN] if has_origin else list(columns.names)
        inputs[source, stream] = picker(list(fields), wanted), has_origin
    return inputs

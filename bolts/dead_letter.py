"""DeadLetterBolt: writes dead letters of rejected rows, and acks a tuple when all of them are durable.

A bolt that takes chunks cannot fail a single record: it emits bad records on its stream ``rejects`` and goes on with
the others. This bolt reads such streams of any number of bolts, and writes each row's *whole* record to the dead-letter
topic, in the same form as the spout::

    letters = DeadLetterBolt.spec(inputs=[parse["rejects"], check["rejects"]])

On the local engine the spout still has the record. Elsewhere, the bolt reads missing parts, such as the headers, from
Kafka again, by the origin. If many records are bad there, let the spout emit them: ``fields=["origin", "key", "value",
"timestamp", "headers"]``.

It uses the settings of the spout: ``kafka.bootstrap``, ``kafka.client.…``, and for the name of the topic
``kafka.dead_letter_topic`` and ``kafka.group``. Set them for the topology, so that both have the same values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from downspout.component import Bolt
from downspout.dead_letters.dead_letter import DeadLetters
from downspout.dead_letters.rejected import DeadLetterWriter, RejectedRow
from downspout.errors import RecordError
from downspout.kafka.clusters import cluster_for
from downspout.kafka.scan import Rereader
from downspout.ledger.origin import Origin
from downspout.origins import each
from downspout.settings.secrets import with_secrets
from downspout.settings.table import parse_scope
from downspout.spout.findings import check_dead_letter_topic
from downspout.spout.settings import dead_letter_topic

RECORD = {"key", "value", "timestamp", "headers"}  # Fields of a reject that are its record's


class DeadLetterBolt(Bolt):
    """Reads the fields ``origin`` and ``error``, and any fields of the record; emits nothing."""

    auto_ack = False
    auto_anchor = False
    wants_tick_s = 1
    outputs: ClassVar[list[str]] = []
    settings_scopes: ClassVar[tuple[str, ...]] = ("kafka",)
    requires: ClassVar[tuple[str, ...]] = ("origin", "error")
    _box: DeadLetterWriter | None = None

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Read the settings; a client is made when there is something to write."""
        settings = parse_scope(with_secrets(storm_conf), "kafka")
        group = settings["group"] or str(storm_conf.get("topology.name") or "topology")
        check_dead_letter_topic(settings, group)
        self._topic = dead_letter_topic(settings, group)
        self._settings = settings
        self._box = None

    def process(self, tup: Any) -> None:
        """Take a rejected record."""
        self._take([(tup, [self._row(tup)])])

    def process_many(self, tups: Sequence[Any]) -> int:
        """Take rejected records."""
        if not self._topic:
            return 0
        self._take([(tup, [self._row(tup)]) for tup in tups])
        return len(tups)

    def _row(self, tup: Any) -> RejectedRow:
        values = tup.values
        row = self._rejected(tup, Origin.of(values.origin), values.error, self._wall_ms())
        for name in RECORD:
            setattr(row, name, getattr(values, name, None))
        return row

    def process_chunk(self, tup: Any) -> None:
        """Take the rejected rows of a chunk."""
        chunk: pa.RecordBatch = tup.values
        now_ms, errors = self._wall_ms(), chunk.column("error").to_pylist()
        told = zip(each(chunk.column("origin")), errors, strict=True)
        rows = [self._rejected(tup, origin, error, now_ms) for origin, error in told]
        for name in RECORD & set(chunk.schema.names):
            for row, value in zip(rows, chunk.column(name).to_pylist(), strict=True):
                setattr(row, name, value)
        self._take([(tup, rows)])

    def _wall_ms(self) -> int:
        return int(self.clock.wall() * 1000)

    def _rejected(self, tup: Any, origin: Origin, error: Any, now_ms: int) -> RejectedRow:
        return RejectedRow(origin, str(error or "rejected"), str(tup.component), int(tup.task), now_ms)

    def _take(self, given: Sequence[tuple[Any, list[RejectedRow]]]) -> None:
        box: DeadLetterWriter | None = None
        for tup, rows in given:
            if not self._topic and rows:  # the spout, which has no such topic either, then stops the run
                self.fail_because(tup, RecordError(rows[0].error.partition(": ")[2] or rows[0].error))
                continue
            if (engine := self.engine_services) is not None:
                for row in [row for row in rows if not row.is_known]:
                    row.whole = engine.record_at(row.origin)
            box = self._ready()
            box.add(tup.id, rows)
        if box is not None:
            box.work(eager=False)

    def _ready(self) -> DeadLetterWriter:
        if self._box is None:
            client = self._settings["client"]
            cluster = cluster_for(self._settings["bootstrap"], client)
            dead_letters, reader = DeadLetters(cluster, self._topic), Rereader(cluster, self.clock, client)
            self._box = DeadLetterWriter(dead_letters, reader, self.clock, self.logger, self.ack, self.fail_because)
        return self._box

    def process_tick(self, tup: Any) -> None:
        """Write waiting letters, and ack durable ones."""
        if self._box is not None:
            self._box.work()
        self.ack(tup)

    def drain(self) -> None:
        """Write waiting letters now."""
        if self._box is not None:
            self._box.drain()

    def close(self) -> None:
        """Release the clients."""
        if self._box is not None:
            self._box.close()

    def report(self) -> Mapping[str, float]:
        """Return how many letters were written, how many wait, and how many were written incomplete."""
        if self._box is None:
            return {"dead_lettered": 0, "held": 0, "incomplete": 0}
        return {"dead_lettered": self._box.written, "held": len(self._box), "incomplete": self._box.incomplete}

    def report_dead_letters(self) -> Mapping[str, Any]:
        """Return the dead letters by exception, and the last ones."""
        return {} if self._box is None else self._box.report()

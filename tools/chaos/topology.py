"""What chaos is done to: KafkaSpout → a bolt → ParquetBolt, with thousands of records in flight nearly always.

The sink flushes by age alone, so up to ``topology.max.spout.pending`` tuples are out until it does. A tuple is a record
or a chunk, as the process that runs it is told (``kafka.emit``).
"""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from streamparse import Topology

from bolts.parquet import ParquetBolt
from downspout.component import Bolt
from spouts.kafka import KafkaSpout

PENDING_MAX = 4_000
COMMIT_MS = 2_000
SESSION_MS = 10_000


class NumberBolt(Bolt):
    """Hands numbers on."""

    outputs: ClassVar = ["origin", "number"]

    def process(self, tup):
        """Read the number."""
        self.emit([tup.values.origin, int(tup.values.value)])

    def process_chunk(self, tup):
        """Read the numbers."""
        chunk = tup.values
        numbers = pc.cast(chunk.column("value"), pa.int64())
        self.emit(pa.RecordBatch.from_arrays([chunk.column("origin"), numbers], names=self.outputs))


class Chaos(Topology):
    """One spout, two bolts, one task each; three processes of it share the work."""

    config = {  # noqa: RUF012 - streamparse wants a plain class attribute
        "topology.max.spout.pending": PENDING_MAX,
        "kafka.commit_period_ms": COMMIT_MS,
        "kafka.session_timeout_ms": SESSION_MS,
        "parquet.flush_age_s": 1.0,
        # The client hands out all that it has fetched of one partition before it turns to the next: small bites.
        "kafka.client.max_partition_fetch_bytes": 32 * 1024,
    }

    spout = KafkaSpout.spec(topics=["chaos"], fields=["origin", "value"], listener="tools.chaos.recorder.Recorder")
    numbers = NumberBolt.spec(inputs=[spout])
    sink = ParquetBolt.spec(inputs=[numbers], directory="output/chaos", schema={"number": "int64"})

"""Components that emit and take chunks; on Storm they are on Downspout's wire, and beside them stand stock ones."""

import pyarrow as pa
import stations as s
from streamparse import Spout

from downspout.component import Bolt
from downspout.wire import MultilangComponent

SIZE = 10
FIELDS = ["number", "key"]


class Chunks(MultilangComponent, s.Witness, Spout):
    """Emits the rows of ``stations.Rows`` as chunks, each under its first row's number; what failed again."""

    outputs = FIELDS
    count = 60

    def initialize(self, conf, context):
        super().initialize(conf, context)
        self.waiting = list(range(0, self.count, SIZE))

    def next_tuple(self):
        if self.waiting and self.all_are_there():
            first = self.waiting.pop(0)
            numbers = range(first, first + SIZE)
            self.note("emit", id=f"{self.component_name}/{first}")
            rows = {"number": numbers, "key": [f"key-{number % 10}" for number in numbers]}
            self.emit(pa.RecordBatch.from_pydict(rows), tup_id=f"{self.component_name}/{first}")

    def ack(self, tup_id):
        self.note("ack", id=tup_id)

    def fail(self, tup_id):
        self.note("fail", id=tup_id)
        self.waiting.append(int(tup_id.rpartition("/")[2]))

    def activate(self):
        self.note("activate")

    def deactivate(self):
        self.note("deactivate")


class Relay(s.Witness, Bolt):
    outputs = FIELDS

    def process(self, tup):
        self.note("got", values=list(tup.values))
        self.emit(list(tup.values))

    def process_chunk(self, tup):
        self.note("chunk", numbers=tup.values.column("number").to_pylist(), fields=tup.values.schema.names)
        self.emit(tup.values)


class Keep(MultilangComponent, s.Keep):
    pass


class FailOnce(MultilangComponent, s.FailOnce):
    """Takes records, and fails odd ones the first time."""


class Batch(MultilangComponent, s.Batch):
    """Takes records in batches; one batch fails once."""


class Tickless(MultilangComponent, s.Tickless):
    """Takes records in batches, on a thread of its own."""

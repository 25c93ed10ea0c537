"""Plain streamparse components, each trying one promise of Storm's and writing down what it saw.

Nothing here knows on which engine it runs. A task appends what happens to it to a file of its own, one JSON object a
line, in the folder that the topology's config names.
"""

import json
import os
import time

from streamparse import BatchingBolt, Bolt, ReliableSpout, Spout, Stream, TicklessBatchingBolt


class Witness:
    def initialize(self, conf, context):
        name = f"{self.component_name}-{self.task_id}.jsonl"
        self._file = open(os.path.join(conf["conformance.dir"], name), "a", encoding="utf-8")  # noqa: SIM115
        sources = context.get("source->stream->fields")
        tasks = context["task->component"].items()
        ours = [f"{component}-{task}.jsonl" for task, component in tasks if not component.startswith("__")]
        self._missing = [os.path.join(conf["conformance.dir"], each) for each in ours]
        self.note("start", tasks=context["task->component"], sources=sources)

    def note(self, what, **facts):
        self._file.write(json.dumps({"what": what, "at": time.time(), **facts}) + "\n")
        self._file.flush()

    def all_are_there(self):
        """Return whether all tasks have started: what is emitted before may time out for want of a machine."""
        self._missing = [path for path in self._missing if not os.path.exists(path)]
        return not self._missing


class Rows(Witness, Spout):
    """Emits rows, each with an id, and those that failed again."""

    outputs = ("number", "key")
    count = 60

    def initialize(self, conf, context):
        super().initialize(conf, context)
        self.waiting = list(range(self.count))
        self.active = True

    def row(self, number):
        return [number, f"key-{number % 10}"]

    def id_of(self, number):
        return f"{self.component_name}/{number}"

    def number_of(self, tup_id):
        return int(tup_id.rpartition("/")[2])

    def next_tuple(self):
        if not self.active:
            self.note("next while inactive")
        if self.waiting and self.all_are_there():
            number = self.waiting.pop(0)
            self.note("emit", id=self.id_of(number))
            self.emit(self.row(number), tup_id=self.id_of(number))

    def ack(self, tup_id):
        self.note("ack", id=tup_id)

    def fail(self, tup_id):
        self.note("fail", id=tup_id)
        self.waiting.append(self.number_of(tup_id))

    def activate(self):
        self.active = True
        self.note("activate")

    def deactivate(self):
        self.active = False
        self.note("deactivate")


class Few(Rows):
    count = 12


class Steady(Rows):
    """Emits for as long as it is let, and does not care what comes of it."""

    def next_tuple(self):
        self.waiting = [0]
        super().next_tuple()
        time.sleep(0.02)

    def ack(self, tup_id):
        pass

    def fail(self, tup_id):
        pass


class Keep(Witness, Bolt):
    def process(self, tup):
        fields = list(getattr(tup.values, "_fields", ()))
        self.note("got", values=list(tup.values), fields=fields, comp=tup.component, stream=tup.stream, task=tup.task)

    def process_tick(self, tup):
        self.note("tick", comp=tup.component, stream=tup.stream)


class Sorter(Witness, Bolt):
    outputs = (Stream(["number"]), Stream(["number", "twice"], name="even"))

    def process(self, tup):
        number = tup.values.number
        self.emit([number])
        if number % 2 == 0:
            self.emit([number, 2 * number], stream="even")


class Pair(Witness, Bolt):
    """Waits for two tuples of one key, and anchors what it emits to both."""

    outputs = ("pair",)
    auto_ack = False

    def initialize(self, conf, context):
        super().initialize(conf, context)
        self.first = {}

    def process(self, tup):
        pair = tup.values.number // 2
        other = self.first.pop(pair, None)
        if other is None or other.values.number == tup.values.number:
            self.first[pair] = tup
            return
        self.emit([pair], anchors=[other, tup])
        self.ack(other)
        self.ack(tup)


class FailOnce(Witness, Bolt):
    auto_ack = False

    def initialize(self, conf, context):
        super().initialize(conf, context)
        self.seen = set()

    def process(self, tup):
        (value, *_) = tup.values
        again = value in self.seen
        self.seen.add(value)
        self.note("got", values=[value], again=again)
        (self.fail if value % 2 and not again else self.ack)(tup)


class ForgetOnce(FailOnce):
    """Neither acks nor fails odd values the first time."""

    def fail(self, tup):
        pass


class RaiseOnce(Witness, Bolt):
    """Raises for odd values the first time, and goes on living."""

    exit_on_exception = False

    def initialize(self, conf, context):
        super().initialize(conf, context)
        self.seen = set()

    def process(self, tup):
        (value, *_) = tup.values
        again = value in self.seen
        self.seen.add(value)
        self.note("got", values=[value], again=again)
        if value % 2 and not again:
            raise ValueError(f"no {value} today")


class Loose(Witness, Bolt):
    """Emits without anchors, to a bolt that fails everything."""

    outputs = ("number",)

    def process(self, tup):
        self.emit([tup.values.number], anchors=[])


class Refuse(Witness, Bolt):
    auto_ack = False

    def process(self, tup):
        self.note("got", values=list(tup.values))
        self.fail(tup)


class Batch(Witness, BatchingBolt):
    """Batches by key; the first batch of one key fails."""

    outputs = ("key", "size")
    exit_on_exception = False

    def initialize(self, conf, context):
        super().initialize(conf, context)
        self.failed = False

    def group_key(self, tup):
        return tup.values.key

    def process_batch(self, key, tups):
        self.note("batch", key=key, numbers=[tup.values.number for tup in tups])
        if key == "key-3" and not self.failed:
            self.failed = True
            raise ValueError("this batch fails once")
        self.emit([key, len(tups)])


class Tickless(Witness, TicklessBatchingBolt):
    """Batches by time, on a thread of its own."""

    secs_between_batches = 1

    def process_batch(self, key, tups):
        self.note("batch", numbers=[tup.values.number for tup in tups])


class Unreliable(Witness, Spout):
    outputs = ("number",)

    def initialize(self, conf, context):
        super().initialize(conf, context)
        self.next = 0

    def next_tuple(self):
        if self.next < 12 and self.all_are_there():
            self.emit([self.next])
            self.next += 1

    def ack(self, tup_id):
        self.note("ack", id=tup_id)

    def fail(self, tup_id):
        self.note("fail", id=tup_id)


class Ids(Few):
    """Ids that are no text: they come back as they are."""

    def id_of(self, number):
        return number if number % 2 else f"text {number} ü"

    def number_of(self, tup_id):
        return tup_id if isinstance(tup_id, int) else int(tup_id.split()[1])


VALUES = [
    "text", "ü 漢 🌧", "", 0, -1, 2**31, 2**53 + 1, -(2**62), 0.1, 0.1 + 0.2, -1e300, True, False, None,
    [1, [2, "three"]], {"a": 1, "b": {"c": [None, 1.5]}}, [], {}, 'quotes " \\ / \n end',
]  # fmt: skip


class Values(Rows):
    count = len(VALUES)

    def row(self, number):
        return [number, VALUES[number]]


class Throttled(Rows):
    """Counts how many are out at a time."""

    def next_tuple(self):
        if self.waiting and self.all_are_there():
            self.out = getattr(self, "out", 0) + 1
            self.note("out", count=self.out)
        super().next_tuple()

    def ack(self, tup_id):
        self.out -= 1
        super().ack(tup_id)


class Patient(Witness, Bolt):
    def process(self, tup):
        time.sleep(0.02)


class Chain(Few):
    def next_tuple(self):
        if self.waiting and self.waiting[0] == 0:
            super().next_tuple()

    def ack(self, tup_id):
        super().ack(tup_id)
        if self.waiting:
            Rows.next_tuple(self)


class Reliable(Witness, ReliableSpout):
    outputs = ("number",)

    def initialize(self, conf, context):
        super().initialize(conf, context)
        self.next = 0

    def next_tuple(self):
        if self.next < 12 and self.all_are_there():
            self.emit([self.next], tup_id=f"reliable/{self.next}")
            self.next += 1

    def ack(self, tup_id):
        super().ack(tup_id)
        self.note("ack", id=tup_id)

    def fail(self, tup_id):
        super().fail(tup_id)
        self.note("fail", id=tup_id)


class Failing(Few):
    """Emits no row again: whoever fails it is heard once."""

    def fail(self, tup_id):
        self.note("fail", id=tup_id)

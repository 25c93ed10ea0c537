"""Who gets which tuple, and when a tree is complete: real streamparse components in the engine."""

import random
from collections import Counter

import pytest
from streamparse import Bolt, Grouping, ReliableSpout, Spout, Stream, Topology

from downspout.engine import Bounds, Engine, from_class
from downspout.errors import TopologyError
from downspout.testing import Fail, On, run_bolt, run_topology


class Words(Spout):
    outputs = ("word",)


class Pass(Bolt):
    outputs = ("word",)

    def process(self, tup):
        self.emit([tup.values.word])


class Keep(Bolt):
    def initialize(self, conf, context):
        self.got = []

    def process(self, tup):
        self.got.append(tup)


def words_of(task):
    return [tup.values.word for tup in task.got]


def topology(grouping, par):
    class Made(Topology):
        words = Words.spec()
        keep = Keep.spec(inputs={words: grouping}, par=par)

    return Made


def test_shuffle_shares_out_evenly():
    """Every task of a shuffle grouping gets as many tuples as the next."""
    result = run_topology(topology(Grouping.SHUFFLE, 3), spouts={"words": [[n] for n in range(9)]})
    assert [len(task.got) for task in result.components["keep"]] == [3, 3, 3]


def test_fields_keeps_equal_values_together():
    """All tuples of one word reach one task, and the words are spread."""
    rows = [
        [word] for word in ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "the", "end"] * 3
    ]
    result = run_topology(topology(Grouping.fields("word"), 3), spouts={"words": rows})
    keepers = enumerate(result.components["keep"])
    places = Counter((word, index) for index, task in keepers for word in words_of(task))
    assert len(places) == len({row[0] for row in rows})
    assert len({index for _, index in places}) > 1


def test_all_and_global():
    """all reaches each task; global only the task with the lowest id."""
    rows = [["a"], ["b"]]
    everywhere = run_topology(topology(Grouping.ALL, 3), spouts={"words": rows})
    assert [words_of(task) for task in everywhere.components["keep"]] == [["a", "b"]] * 3
    lowest = run_topology(topology(Grouping.GLOBAL, 3), spouts={"words": rows})
    assert [words_of(task) for task in lowest.components["keep"]] == [["a", "b"], [], []]
    assert everywhere.run.completed == lowest.run.completed == 2


class Sorter(Bolt):
    outputs = (Stream(["word"]), Stream(["word", "size"], name="long"))

    def process(self, tup):
        (word,) = tup.values
        self.emit([word]) if len(word) < 4 else self.emit([word, len(word)], stream="long")


class TwoStreams(Topology):
    words = Words.spec()
    sorter = Sorter.spec(inputs=[words])
    short = Keep.spec(inputs=[sorter])
    long = Keep.spec(inputs=[sorter["long"]])


def test_named_streams_reach_their_subscribers():
    result = run_topology(TwoStreams, spouts={"words": [["ox"], ["horse"]]})
    (short,), (long,) = result.components["short"], result.components["long"]
    assert [(tup.stream, tup.values.word, tup.component) for tup in short.got] == [("default", "ox", "sorter")]
    assert [(tup.stream, tup.values.size) for tup in long.got] == [("long", 5)]
    assert result.emitted("sorter", "long") == [("horse", 5)]


class Router(Bolt):
    outputs = (Stream(["word"], direct=True),)

    def process(self, tup):
        keepers = sorted(int(task) for task, name in self.context["task->component"].items() if name == "keep")
        target = keepers[len(tup.values.word) % len(keepers)]
        assert self.emit([tup.values.word], direct_task=target, need_task_ids=True) == [target]


class Direct(Topology):
    words = Words.spec()
    router = Router.spec(inputs=[words])
    keep = Keep.spec(inputs={router: Grouping.DIRECT}, par=2)


def test_direct_emits_go_where_the_emitter_says():
    """With a direct grouping the emitting bolt picks the task, by the ids that its context gives."""
    result = run_topology(Direct, spouts={"words": [["a"], ["bb"], ["ccc"]]})
    assert [words_of(task) for task in result.components["keep"]] == [["bb"], ["a", "ccc"]]
    assert result.run.completed == 3


class Asker(Bolt):
    outputs = ("word",)

    def initialize(self, conf, context):
        self.answers = []

    def process(self, tup):
        self.answers.append(self.emit([tup.values.word], need_task_ids=True))


class OwnEmit(Asker):
    """Overrides emit, so it goes through pystorm's messages."""

    def emit(self, tup, **kwargs):  # type: ignore[override]
        return super().emit([value.upper() for value in tup], **kwargs)


@pytest.mark.parametrize("bolt", [Asker, OwnEmit])
def test_task_ids_are_returned(bolt):
    """need_task_ids gives the ids of the tasks that got the tuple, on the short way and through messages."""

    class Made(Topology):
        words = Words.spec()
        asker = bolt.spec(inputs=[words])
        keep = Keep.spec(inputs={asker: Grouping.ALL}, par=2)

    result = run_topology(Made, spouts={"words": [["a"]]})
    assert result.components["asker"][0].answers == [[task.task_id for task in result.components["keep"]]]
    assert words_of(result.components["keep"][0]) == ["A" if bolt is OwnEmit else "a"]


class OwnMessages(Pass):
    """Overrides what lies below emit, ack and fail."""

    def send_message(self, message):
        self.sent = [*getattr(self, "sent", []), message["command"]]
        super().send_message(message)


class OwnReading(Pass):
    def read_tuple(self):
        tup = super().read_tuple()
        return tup._replace(values=tup.values._replace(word=tup.values.word + "!"))


@pytest.mark.parametrize(("bolt", "word"), [(Pass, "a"), (OwnMessages, "a"), (OwnReading, "a!")])
def test_a_component_may_override_pystorm_anywhere(bolt, word):
    """Overridden sending and reading is used, and trees are the same as on the short way."""

    class Made(Topology):
        words = Words.spec()
        middle = bolt.spec(inputs=[words])
        keep = Keep.spec(inputs=[middle])

    result = run_topology(Made, spouts={"words": [["a"]]}, faults=[Fail("keep", 1)])
    assert words_of(result.components["keep"][0]) == [word]
    assert (result.run.completed, result.run.failed) == (1, 1)
    if bolt is OwnMessages:
        assert result.components["middle"][0].sent == ["log", "emit", "ack"] * 1 + ["emit", "ack"]


class Pairs(Bolt):
    """Holds every first tuple and anchors what it emits to both."""

    outputs = ("pair",)
    auto_ack = False

    def initialize(self, conf, context):
        self.first = None

    def process(self, tup):
        if self.first is None:
            self.first = tup
            return
        self.emit([self.first.values.word + tup.values.word], anchors=[self.first, tup.id])
        self.ack(self.first)
        self.ack(tup.id)
        self.first = None


class Joined(Topology):
    words = Words.spec()
    pairs = Pairs.spec(inputs=[words])
    keep = Keep.spec(inputs=[pairs])


def test_a_tuple_with_several_anchors_belongs_to_all_of_their_trees():
    """Neither tree is complete before the joined tuple is acked, and both fail when it fails."""
    good = run_topology(Joined, spouts={"words": [["a"], ["b"]]})
    assert good.emitted("pairs") == [("ab",)]
    assert good.acked("words") == [("a",), ("b",)]
    bad = run_topology(Joined, spouts={"words": [["a"], ["b"]]}, faults=[Fail("keep", 1)])
    assert sorted(bad.failed("words")) == [("a",), ("b",)]
    assert sorted(bad.acked("words")) == [("a",), ("b",)]


class Unanchored(Pass):
    auto_anchor = False


def test_an_unanchored_tuple_is_nobodys():
    """With auto_anchor off, a failure further down does not reach the spout."""

    class Made(Topology):
        words = Words.spec()
        middle = Unanchored.spec(inputs=[words])
        keep = Keep.spec(inputs=[middle])

    result = run_topology(Made, spouts={"words": [["a"]]}, faults=[Fail("keep", 1)])
    assert result.acked("words") == [("a",)]
    assert result.failed("keep") == [("a",)]
    assert result.failed("words") == []


class Twice(Pass):
    def process(self, tup):
        super().process(tup)
        self.ack(tup)
        self.ack(tup.id)
        self.fail(tup)


def test_only_the_first_ack_or_fail_counts():
    class Made(Topology):
        words = Words.spec()
        middle = Twice.spec(inputs=[words])
        keep = Keep.spec(inputs=[middle])

    result = run_topology(Made, spouts={"words": [["a"]]})
    assert (result.run.completed, result.run.failed, result.counts("middle").acked) == (1, 0, 1)


class Counting(Spout):
    outputs = ("word",)

    def initialize(self, conf, context):
        self.inside = []

    def next_tuple(self):
        self.emitting = True
        self.emit(["a"], tup_id="7")
        self.emitting = False

    def ack(self, tup_id):
        self.inside.append((tup_id, self.emitting))


class NoAckers(Topology):
    words = Counting.spec()
    keep = Keep.spec(inputs=[words])


@pytest.mark.parametrize(("ackers", "inside"), [(0, True), (1, False)])
def test_without_ackers_spout_tuples_are_acked_inside_emit(ackers, inside):
    """topology.acker.executors = 0 acks at once, as Storm does; otherwise the ack comes after the bolts' turn."""
    result = run_topology(NoAckers, config={"topology.acker.executors": ackers}, records=3)
    assert set(result.components["words"][0].inside) == {("7", inside)}


def test_a_spout_tuple_that_nobody_reads_is_acked():
    """A stream without subscribers completes its trees."""

    class Two(Spout):
        outputs = (Stream(["word"]), Stream(["word"], name="unread"))

    class Made(Topology):
        words = Two.spec()
        keep = Keep.spec(inputs=[words])

    result = run_topology(Made, spouts={"words": [On("unread", ["a"])]})
    assert result.acked("words") == [("a",)]


class Reliable(ReliableSpout):
    outputs = ("word",)

    def initialize(self, conf, context):
        self.words = iter("abc")

    def next_tuple(self):
        if word := next(self.words, None):
            self.emit([word], tup_id=word)


def test_a_reliable_spout_replays():
    """streamparse's ReliableSpout emits a failed tuple again, from inside its fail."""

    class Made(Topology):
        words = Reliable.spec()
        keep = Keep.spec(inputs=[words])

    result = run_topology(Made, records=3, faults=[Fail("keep", 2), Fail("keep", 4)])
    assert words_of(result.components["keep"][0]) == ["a", "c", "b"]
    assert result.run.completed == 3


WRONG = {
    "too few values": (lambda bolt: bolt.emit([1, 2]), "emits 2 values to stream 'default', which has 1 fields"),
    "unknown stream": (
        lambda bolt: bolt.emit([1], stream="lng"),
        "emits to stream 'lng', which it does not declare. Try: 'long'",
    ),
    "no task on a direct stream": (lambda bolt: bolt.emit([1], stream="to"), "direct stream 'to' without a task"),
    "no such task": (lambda bolt: bolt.emit([1], stream="to", direct_task=99), "task 99, which does not exist"),
}


@pytest.mark.parametrize(("emit", "message"), WRONG.values(), ids=WRONG)
def test_an_emit_that_cannot_be_stops_the_run(emit, message):
    """A bolt that emits what its outputs do not declare is wrong for every tuple, so the run ends and says why."""

    class Wrong(Bolt):
        outputs = (Stream(["word"]), Stream(["word"], name="long"), Stream(["word"], name="to", direct=True))

        def process(self, tup):
            emit(self)

    with pytest.raises(TopologyError, match=message):
        run_bolt(Wrong, [["a"]])


def test_a_tuple_must_be_a_list():
    """Emitting a bare text raises in the bolt, as pystorm does."""

    class Wrong(Bolt):
        outputs = ("word",)
        exit_on_exception = False

        def process(self, tup):
            self.emit("abc" if tup.values.word == "bad" else [tup.values.word])

    result = run_bolt(Wrong, [{"word": "bad"}, {"word": "good"}])
    assert "All Tuples must be either lists or tuples" in result.errors[0]
    assert result.emitted("bolt") == [("good",)]


def test_the_context_is_that_of_storms_handshake():
    """Components find tasks, streams, fields and groupings where Storm puts them."""

    class Made(Topology):
        words = Words.spec()
        sorter = Sorter.spec(inputs={words: Grouping.fields("word")})
        keep = Keep.spec(inputs=[sorter["long"]])

    result = run_topology(Made, spouts={"words": []})
    (sorter,) = result.components["sorter"]
    assert (sorter.component_name, sorter.topology_name, sorter.task_id) == ("sorter", "Made", 3)
    assert sorter.context == {
        "taskid": 3,
        "componentid": "sorter",
        "task->component": {"1": "__acker", "2": "keep", "3": "sorter", "4": "words"},
        "streams": ["default", "long"],
        "stream->outputfields": {"default": ["word"], "long": ["word", "size"]},
        "stream->target->grouping": {"default": {}, "long": {"keep": {"type": "SHUFFLE"}}},
        "source->stream->fields": {"words": {"default": ["word"]}},
        "source->stream->grouping": {"words": {"default": {"type": "FIELDS", "fields": ["word"]}}},
    }


def run_seeded(seed):
    """Return what each task got in a run with faults."""
    rows = [[n] for n in range(50)]
    result = run_topology(
        topology(Grouping.SHUFFLE, 4), spouts={"words": rows}, seed=seed, faults=[Fail("keep", 7), Fail("keep", 20)]
    )
    return [[(tup.id, tup.values) for tup in task.got] for task in result.components["keep"]], result.acked("words")


def test_a_seed_is_a_run():
    """The same seed gives the same run, ids and order included; another one another."""
    assert run_seeded(5) == run_seeded(5)
    assert run_seeded(5) != run_seeded(6)


def test_a_cycle_of_bolts_runs():
    """A bolt that reads itself works its tuples off, and the tree is complete when all are."""

    class Count(Bolt):
        outputs = ("word",)

        def process(self, tup):
            if tup.values.word > 0:
                self.emit([tup.values.word - 1])

    class Made(Topology):
        words = Words.spec()
        count = Count.spec(inputs=[words])

    graph = from_class(Made, "Made")
    count = graph.components["count"]
    looped = type(count)(**{**vars(count), "inputs": (*count.inputs, type(count.inputs[0])("count", "default"))})
    graph = type(graph)(graph.name, {**graph.components, "count": looped})
    result = run_topology(graph, spouts={"words": [[500]]})
    assert len(result.acked("count")) == 501
    assert result.run.completed == 1


def test_the_engine_needs_no_observer():
    class Hops(Topology):
        words = Reliable.spec()
        middle = Pass.spec(inputs=[words])
        keep = Keep.spec(inputs=[middle])

    graph = from_class(Hops, "Hops")
    engine = Engine(graph, {name: {} for name in graph.components}, bounds=Bounds(records=3), rng=random.Random(0))
    result = engine.run()
    assert (result.completed, result.components["middle"].acked, result.components["keep"].acked) == (3, 3, 3)
    assert result.reason == "records"

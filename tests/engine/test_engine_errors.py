"""Components that raise: failed tuples, restarts, the end of the run, and messages."""

import logging
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from streamparse import BatchingBolt, Bolt, Spout, Topology

from bolts.parse import JsonParseBolt
from downspout.component import Bolt as OurBolt
from downspout.engine import Engine, from_class
from downspout.errors import ComponentError, RecordError, SinkError
from downspout.testing import Crash, Lose, VirtualClock, run_bolt, run_topology


class Words(Spout):
    outputs = ("word",)


class Picky(Bolt):
    """Raises on words that begin with "bad"; counts its instances."""

    outputs = ("word",)
    made = 0

    def initialize(self, conf, context):
        type(self).made += 1
        self.number = type(self).made

    def process(self, tup):
        if tup.values.word.startswith("bad"):
            raise ValueError("a bad word")
        self.emit([f"{tup.values.word}{self.number}"])


def picky(**attributes):
    """Return a class of its own, so that instances are counted apart."""
    return type("Picky", (Picky,), attributes)


def before(bolt):
    class Made(Topology):
        words = Words.spec()
        picky = bolt.spec(inputs=[words])

    return Made


def test_a_bolt_that_raises_is_restarted():
    """exit_on_exception = True: the tuple fails, a new instance goes on with the next."""
    result = run_topology(before(picky()), spouts={"words": [["a"], ["b"], ["c"]]}, faults=[Crash("picky", 2)])
    assert [values.word for values in result.emitted("picky")] == ["a1", "c2", "b2"]
    assert result.failed("words") == [("b",)]
    assert (result.counts("picky").errors, result.counts("picky").restarts) == (1, 1)


def test_a_bolt_may_go_on_after_an_error():
    """exit_on_exception = False: the tuple fails and the same instance goes on."""
    result = run_topology(
        before(picky(exit_on_exception=False)), spouts={"words": [["a"], ["b"]]}, faults=[Crash("picky", 1)]
    )
    assert [values.word for values in result.emitted("picky")] == ["b1", "a1"]
    assert result.counts("picky").restarts == 0


def test_a_tuple_is_not_failed_with_auto_fail_off():
    bolt = picky(exit_on_exception=False, auto_fail=False)
    result = run_topology(before(bolt), spouts={"words": [["a"]]}, faults=[Crash("picky", 1)])
    assert (result.run.timeouts, result.run.completed) == (1, 1)
    assert result.clock.monotonic() >= 30


def test_a_bolt_that_raises_on_all_ends_the_run():
    """A bolt that raised on all that there is, more than run.restarts_max, ends the run, named with task and tuple."""
    rows = [[f"bad{number}"] for number in range(9)]
    with pytest.raises(ComponentError) as caught:
        run_topology(before(picky()), spouts={"words": rows}, config={"run.restarts_max": 2})
    assert "picky[task 2]: process of tuple ('bad" in str(caught.value)
    assert "raised ValueError: a bad word (" in str(caught.value)
    assert "on 9 different tuples in a row" in str(caught.value)
    assert caught.value.exit_code == 8


def test_one_bad_tuple_does_not_end_the_run_however_often_it_comes():
    """A single bad tuple that is replayed until its spout gives it up never ends the run."""
    result = run_topology(before(picky()), spouts={"words": [["bad"], ["ok"]]}, config={"run.restarts_max": 2})
    assert result.counts("picky").restarts == 11
    assert result.components["words"][0].given_up == [("bad",)]


def test_restarts_in_a_row_are_counted_anew_after_a_success():
    """A bad tuple between good ones never ends the run by itself."""
    rows = [[word] for word in ("bad", "ok") * 8]
    faults = [Crash("picky", nth) for nth in range(1, 16, 2)]
    result = run_topology(before(picky()), spouts={"words": [["ok"] for _ in rows]}, faults=faults)
    assert result.counts("picky").restarts == 8
    assert result.run.completed == len(rows)


class Hoarder(Bolt):
    auto_ack = False
    exit_on_exception = True

    def initialize(self, conf, context):
        self.held = []

    def process(self, tup):
        if tup.values.word == "bad":
            raise ValueError("a bad word")
        self.held.append(tup)

    def drain(self):
        while self.held:
            self.ack(self.held.pop())


class Judge(Spout):
    """Emits a, bad, b once and keeps the reasons of fails."""

    outputs = ("word",)

    def initialize(self, conf, context):
        self.words = ["b", "bad", "a"]
        self.failures = {}

    def next_tuple(self):
        if self.words:
            word = self.words.pop()
            self.emit([word], tup_id=word)

    def fail_with(self, tup_id, failure):
        self.failures[tup_id] = failure


def test_the_spout_learns_why_a_tuple_failed():
    """The culprit's failure has kind, component, task, error and stack; what the restart lost is no culprit."""

    class Made(Topology):
        judge = Judge.spec()
        hoarder = Hoarder.spec(inputs=[judge])

    result = run_topology(Made, for_s=1)
    (judge,) = result.components["judge"]
    bad, innocent = judge.failures["bad"], judge.failures["a"]
    assert (bad.kind, bad.component, bad.task, bad.error) == ("exception", "hoarder", 2, "ValueError: a bad word")
    assert "raise ValueError" in bad.stack
    assert innocent.kind == "timeout"
    assert set(judge.failures) == {"a", "bad"}
    assert result.run.completed == 1


def test_kinds_of_failure():
    """A fail of the bolt's own and a timeout are told apart from an exception."""

    class Refuser(Bolt):
        auto_ack = False

        def process(self, tup):
            self.fail(tup)

    class Made(Topology):
        judge = Judge.spec()
        refuser = Refuser.spec(inputs=[judge])

    result = run_topology(Made, for_s=40, faults=[Lose("refuser", 3)])
    (judge,) = result.components["judge"]
    kinds = {word: (failure.kind, failure.component) for word, failure in judge.failures.items()}
    assert kinds == {"a": ("fail", "refuser"), "bad": ("fail", "refuser"), "b": ("timeout", "")}


def test_a_record_error_is_about_one_record():
    """A RecordError fails its tuple and nothing else, and its coordinates are in the log."""

    class Parse(OurBolt):
        def process(self, tup):
            if tup.values.value == "bad":
                raise RecordError("orders[3]@918: no JSON")

    rows = [
        {"origin": ["orders", "", 3, 918, ""], "value": "bad"},
        {"origin": ["orders", "", 3, 919, ""], "value": "{}"},
    ]
    result = run_bolt(Parse, rows)
    assert result.run.completed == 1
    assert "bolt[task 2]: orders[3]@918 (from input): RecordError: orders[3]@918: no JSON" in result.errors[0]
    assert result.errors[0].startswith("11 × ")


def test_a_bolt_may_fail_a_tuple_for_a_reason():
    """fail_because fails one tuple without raising; the spout learns kind, error and stack, and the log has it once."""

    class Quiet(OurBolt):
        auto_ack = False

        def process(self, tup):
            self.fail_because(tup, RecordError("orders[3]@918: too long"))

    class Made(Topology):
        judge = Judge.spec()
        quiet = Quiet.spec(inputs=[judge])

    result = run_topology(Made, for_s=1)
    failure = result.components["judge"][0].failures["bad"]
    assert (failure.kind, failure.component) == ("exception", "quiet")
    assert failure.error == "RecordError: orders[3]@918: too long"
    assert result.counts("quiet").errors == 3
    assert len(result.errors) == 1


@pytest.mark.parametrize("how", ["raises", "fails it for a reason"])
def test_the_reason_of_one_fail_is_not_told_of_the_next(how):
    """A tuple that a bolt fails without a reason has none, whatever became of the tuple before."""

    class Mixed(OurBolt):
        auto_ack = False
        exit_on_exception = False

        def process(self, tup):
            if tup.values.word != "bad":
                self.fail(tup)
            elif how == "raises":
                raise ValueError("a bad word")
            else:
                self.fail_because(tup, ValueError("a bad word"))

    class Made(Topology):
        judge = Judge.spec()
        mixed = Mixed.spec(inputs=[judge])

    result = run_topology(Made, for_s=1)
    failures = result.components["judge"][0].failures
    kinds = {word: (failure.kind, failure.error) for word, failure in failures.items()}
    assert kinds == {"a": ("fail", ""), "bad": ("exception", "ValueError: a bad word"), "b": ("fail", "")}


def test_a_bounded_spout_that_cannot_say_where_it_is_ends_the_run():
    """An exception in exhausted() is reported as the spout's, like one in next_tuple."""

    class Lost(Words):
        def next_tuple(self):
            pass

        def exhausted(self):
            raise RuntimeError("no idea")

        def end_reached(self):
            return False

    class Made(Topology):
        lost = Lost.spec()
        picky = picky().spec(inputs=[lost])

    with pytest.raises(ComponentError, match=r"lost\[task 2\]: exhausted raised RuntimeError: no idea"):
        run_topology(Made)


def test_an_error_that_concerns_all_records_ends_the_run():
    """A sink that cannot write stops the run with its own error, instead of failing record after record."""

    class Sink(OurBolt):
        def process(self, tup):
            raise SinkError("disk full", cure="make room")

    with pytest.raises(SinkError, match="disk full"):
        run_bolt(Sink, [["a"]])


class Broken(Spout):
    outputs = ("word",)
    closed = False

    def next_tuple(self):
        raise RuntimeError("no next")

    def close(self):
        type(self).closed = True


def test_a_spout_that_raises_ends_the_run():
    """An exception in next_tuple ends the run with component, task and line; components are closed."""

    class Made(Topology):
        words = Broken.spec()
        picky = picky().spec(inputs=[words])

    with pytest.raises(ComponentError, match=r"words\[task 3\]: next_tuple raised RuntimeError: no next \(.*:\d+\)"):
        run_topology(Made, for_s=1)
    assert Broken.closed


def test_a_run_that_fails_commits_what_was_acked():
    """When a bolt ends the run, spouts hear of the acks so far and are deactivated, where ours commit, and closed."""

    class Sink(OurBolt):
        def process(self, tup):
            if tup.values.word == "bad":
                raise SinkError("disk full")

    class Noting(Judge):
        calls: tuple[str, ...] = ()

        def ack(self, tup_id):
            type(self).calls += (tup_id,)

        def deactivate(self):
            type(self).calls += ("deactivate",)

        def close(self):
            type(self).calls += ("close",)

    class Made(Topology):
        judge = Noting.spec()
        sink = Sink.spec(inputs=[judge])

    with pytest.raises(SinkError):
        run_topology(Made, for_s=1)
    assert Noting.calls == ("a", "deactivate", "close")


@pytest.mark.parametrize("where", ["__init__", "initialize"])
def test_a_component_that_cannot_start_ends_the_run(where):
    """An exception while a component is made or initialized names it."""

    def explode(self, *args, **kwargs):
        raise OSError("no file")

    with pytest.raises(ComponentError, match=r"picky\[task 2\]: initialize raised OSError: no file"):
        run_topology(before(picky(**{where: explode})), spouts={"words": []})


def test_an_error_flood_is_counted(caplog):
    """Equal errors are logged in full once, then at each power of ten."""
    rows = [["bad"]] * 15
    with caplog.at_level(logging.ERROR, logger="downspout.engine"):
        run_topology(before(picky(exit_on_exception=False)), spouts={"words": rows}, until=None, for_s=0.001)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2 + (len([m for m in messages if "100th" in m]))
    assert "Traceback" in messages[0]
    assert "10th time of this error" in messages[1]


def test_errors_of_one_line_are_told_apart_by_their_messages(caplog):
    """Numbers and quoted values do not count; of very many messages few are logged."""

    class Teller(Bolt):
        outputs = ()
        exit_on_exception = False

        def process(self, tup):
            raise ValueError(tup.values.word)

    rows = [["no column 'a'"], ["7 is too large"], ["no column 'b'"], ["12 is too large"]]
    rows += [["bad " + "x" * number] for number in range(1, 40)]
    with caplog.at_level(logging.ERROR, logger="downspout.engine"):
        result = run_topology(before(Teller), spouts={"words": rows}, until=None, for_s=0.001)
    firsts = [record.getMessage().splitlines()[0] for record in caplog.records if "Traceback" in record.getMessage()]
    assert sum("no column" in first for first in firsts) == sum("is too large" in first for first in firsts) == 1
    assert len(firsts) == len(result.errors) == 21


def test_a_refused_record_takes_one_line_of_the_log(caplog):
    """What a parser says of a bad value names record, column, value and reason; a traceback would show our code."""
    spec = JsonParseBolt.spec(fields=["delay"], types={"delay": "int16"})
    with caplog.at_level(logging.ERROR, logger="downspout.engine"):
        run_bolt(spec, [{"origin": ["orders", "", 3, 918, ""], "value": b'{"delay": "late"}'}])
    first, tenth = (record.getMessage() for record in caplog.records)
    assert "orders[3]@918: bolt: delay = 'late' does not fit int16: string instead of int16" in first
    assert len(first.splitlines()) == 1
    assert tenth == f"{first} (10th time of this error)"


@pytest.mark.parametrize("kind", ["int16", "int64", "float64"])
def test_a_number_in_text_is_told_which_column_takes_it(caplog, kind):
    spec = JsonParseBolt.spec(fields=["delay"], types={"delay": kind})
    with caplog.at_level(logging.ERROR, logger="downspout.engine"):
        run_bolt(spec, [{"origin": ["orders", "", 3, 918, ""], "value": b'{"delay": "-12"}'}])
    assert f"string instead of {pa.type_for_alias(kind)} (a decimal column takes numbers in text)" in caplog.text
    taking = JsonParseBolt.spec(fields=["delay"], types={"delay": "decimal(9,0)"})
    result = run_bolt(taking, [{"origin": ["orders", "", 3, 918, ""], "value": b'{"delay": "-12"}'}])
    assert [found.delay for found in result.emitted("bolt")] == [Decimal(-12)]


def test_a_record_that_a_users_code_refuses_has_its_traceback(caplog):
    """The user's line is worth it, also where the error was raised of another one."""

    class Look(OurBolt):
        def process(self, tup):
            try:
                {}[tup.values.value]
            except KeyError as error:
                raise RecordError("orders[3]@918: unknown") from error

    with caplog.at_level(logging.ERROR, logger="downspout.engine"):
        run_bolt(Look, [{"origin": ["orders", "", 3, 918, ""], "value": "a"}])
    first, tenth = (record.getMessage() for record in caplog.records)
    assert "{}[tup.values.value]" in first
    assert tenth.endswith("(10th time of this error; the first has the traceback)")


def test_an_error_that_cannot_be_told_fails_its_tuple_alone(caplog):
    """An exception whose __str__ raises is an error like any other: its tuple fails, and the run goes on."""

    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no word")

    def process(self, tup):
        if tup.values.word == "bad":
            raise Mute

    result = run_topology(
        before(picky(process=process, exit_on_exception=False)),
        spouts={"words": [["bad"], ["good"]]}, until=None, for_s=0.001,
    )  # fmt: skip
    assert result.run.completed == 1
    assert result.run.failed >= 1
    assert "Mute: <its __str__ raised>" in caplog.text


def test_a_tuple_that_cannot_be_shown_is_failed_like_any_other(caplog):
    """A value whose ``__repr__`` raises does not end the run when a bolt raises on it; the log names its class."""

    class Detached:
        def __repr__(self):
            raise RuntimeError("detached")

    class Reads(Bolt):
        outputs = ("value",)
        exit_on_exception = False

        def process(self, tup):
            if isinstance(tup.values.value, Detached):
                raise ValueError("no")
            self.emit([tup.values.value])

    rows: list[Any] = [["a"], [Detached()], ["b"]]
    result = run_bolt(Reads, rows, fields=["value"], until=None, for_s=0.001)
    assert [values.value for values in result.emitted("bolt")] == ["a", "b"]
    assert result.run.failed >= 1
    assert "tuple <tuple whose __repr__ raised RuntimeError> (from input): ValueError: no" in caplog.text


def test_a_component_may_report_an_error_itself(caplog):
    """What its own code gives to raise_exception is in the log; of an error that it raised there is one entry."""

    def process(self, tup):
        if tup.values.word == "odd":
            self.raise_exception(KeyError("by hand"), tup)
        elif tup.values.word == "bad":
            raise ValueError("raised")

    with caplog.at_level(logging.ERROR):
        run_topology(
            before(picky(process=process, exit_on_exception=False)),
            spouts={"words": [["odd"], ["bad"]]}, until=None, for_s=0.001, faults=[],
        )  # fmt: skip
    reports = [record.getMessage() for record in caplog.records]
    assert sum("KeyError raised while processing" in report for report in reports) == 1
    assert sum("raised while processing" in report for report in reports) == 1
    assert sum("ValueError: raised\nTraceback" in report for report in reports) == 1


def test_what_a_spout_is_told_is_the_whole_traceback():
    """The stack of each failure names the user's line and ends in that failure's own message."""
    told = []

    class Curious(Words):
        def initialize(self, conf, context):
            self.left = ["a", "b"]

        def next_tuple(self):
            if self.left:
                self.emit([word := self.left.pop()], tup_id=word)

        def fail_with(self, tup_id, failure):
            told.append(failure)

    def process(self, tup):
        raise ValueError(tup.values.word)

    class Made(Topology):
        words = Curious.spec()
        picky = picky(process=process, exit_on_exception=False).spec(inputs=[words])

    run_topology(Made, until=None, for_s=0.1)
    texts = {failure.error: failure.stack for failure in told}
    assert set(texts) == {"ValueError: a", "ValueError: b"}
    for error, stack in texts.items():
        assert stack.startswith("Traceback (most recent call last):\n")
        assert "raise ValueError(tup.values.word)" in stack
        assert stack.endswith(f"\n{error}\n")


class Half(BatchingBolt):
    outputs = ("word",)
    exit_on_exception = False

    def group_key(self, tup):
        return tup.values.word

    def process_batch(self, key, tups):
        if key == "bad":
            raise ValueError("a bad batch")


def test_only_the_failing_batch_fails():
    """With exit_on_exception off, a BatchingBolt fails the batch that raised and keeps the others."""
    result = run_topology(before(Half), spouts={"words": [["ok"], ["bad"]]}, until=None, for_s=1)
    assert ("ok",) in result.acked("words")
    assert ("ok",) not in result.failed("words")
    assert ("bad",) in result.failed("words")


def test_an_abort_waits_for_nothing():
    """abort() ends the run without draining; what was in flight stays so and spouts are closed, not deactivated."""

    class Made(Topology):
        judge = Judge.spec()
        hoarder = Hoarder.spec(inputs=[judge])

    graph = from_class(Made, "Made")
    engine = Engine(graph, {name: {} for name in graph.components}, clock=VirtualClock())

    class Stopper:
        def update(self, engine):
            if engine.in_flight:
                engine.abort()

    engine.view = Stopper()
    result = engine.run()
    assert result.reason == "aborted"
    assert result.in_flight == 1
    assert not result.drained

"""Components that call ``sys.exit``, as argparse, click or a library does for them: an error like any other."""

import json
import subprocess
import sys
from collections import Counter

import pytest
from streamparse import BatchingBolt, Bolt, Spout, TicklessBatchingBolt, Topology

from downspout.cli import main
from downspout.clock import SYSTEM_CLOCK
from downspout.component import Bolt as OurBolt
from downspout.engine.load import load
from downspout.errors import ComponentError, TopologyError
from downspout.testing import FakeKafka, run_topology
from tests.spout.reasons import OTHERS_NEED_IT

WORDS = ("b", "bad", "a")


class Judge(Spout):
    """Emits a, bad, b once, and keeps what was acked and why others failed."""

    outputs = ("word",)

    def initialize(self, conf, context):
        self.words, self.acks, self.failures = list(WORDS), [], {}

    def next_tuple(self):
        if self.words:
            word = self.words.pop()
            self.emit([word], tup_id=word)

    def ack(self, tup_id):
        self.acks.append(tup_id)

    def fail_with(self, tup_id, failure):
        self.failures[tup_id] = failure


def judged(bolt, config=None):
    """Run a bolt behind the judge; return the judge and the result."""

    class Made(Topology):
        judge = Judge.spec()
        leaver = bolt.spec(inputs=[judge])

    result = run_topology(Made, for_s=8, config=config)
    return result.components["judge"][0], result


class Leaver(Bolt):
    def process(self, tup):
        if tup.values.word == "bad":
            sys.exit("boom")


class Reader(Leaver):
    """Reads its tuples by itself, so that the engine feeds it messages."""

    def read_tuple(self):
        return super().read_tuple()


class Keeper(Leaver):
    exit_on_exception = False


class Ours(OurBolt):
    process = Leaver.process


class Batches(BatchingBolt):
    ticks_between_batches = 0
    exit_on_exception = False

    def group_key(self, tup):
        return tup.values.word

    def process_batch(self, key, tups):
        if key == "bad" and tups:
            sys.exit("boom")


class Tickless(TicklessBatchingBolt):
    secs_between_batches = 1
    exit_on_exception = False
    group_key = Batches.group_key
    process_batch = Batches.process_batch


@pytest.mark.parametrize(
    ("bolt", "restarts"), [(Leaver, 1), (Reader, 1), (Keeper, 0), (Ours, 0), (Batches, 0), (Tickless, 0)]
)
def test_an_exit_is_the_tuples_failure(bolt, restarts):
    """The tuple fails with the exit as its reason and a traceback in the log, and the other tuples are processed."""
    judge, result = judged(bolt, {"topology.tick.tuple.freq.secs": 1})
    assert sorted(judge.acks) == ["a", "b"]
    failure = judge.failures.pop("bad")
    assert judge.failures == {}
    assert (failure.kind, failure.component, failure.error) == ("exception", "leaver", "SystemExit: boom")
    assert 'sys.exit("boom")' in failure.stack
    assert result.counts("leaver").restarts == restarts
    assert (len(result.errors), result.counts("leaver").errors) == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("base", [BatchingBolt, TicklessBatchingBolt])
def test_an_exit_with_a_batch_restarts_the_bolt(base):
    """exit_on_exception = True: the batch is lost with the old instance, which is replaced; the run goes on."""

    class Once(base):  # type: ignore[valid-type]
        ticks_between_batches = 0
        secs_between_batches = 1
        left: list = []  # noqa: RUF012

        def process_batch(self, key, tups):
            if not self.left:
                self.left.append(True)
                sys.exit(2)

    judge, result = judged(Once, {"topology.tick.tuple.freq.secs": 1})
    assert sorted(judge.failures) == ["a", "b", "bad"]
    assert result.counts("leaver").restarts == 1


@pytest.mark.parametrize("keeps_on", [True, False])
def test_an_exit_in_a_tick_fails_no_tuple(keeps_on):
    """A tick that exits is reported; what was acked stays so, and tuples go on being processed."""

    class Ticker(Bolt):
        exit_on_exception = not keeps_on
        ticks: list = []  # noqa: RUF012

        def process(self, tup):
            pass

        def process_tick(self, tup):
            self.ticks.append(tup)
            if len(self.ticks) == 2:
                sys.exit("boom")

    judge, result = judged(Ticker, {"topology.tick.tuple.freq.secs": 1})
    assert sorted(judge.acks) == ["a", "b", "bad"]
    assert len(Ticker.ticks) > 3
    assert result.counts("leaver").restarts == (not keeps_on)
    assert "SystemExit: boom" in result.errors[0]


def test_an_exit_while_draining_is_an_error_too():
    """What drain() raises is reported, and the run ends in order."""

    class Drained(Keeper):
        def process(self, tup):
            pass

        def drain(self):
            sys.exit("boom")

    judge, result = judged(Drained)
    assert sorted(judge.acks) == ["a", "b", "bad"]
    assert "SystemExit: boom" in result.errors[0]


def test_a_bolt_that_exits_on_all_ends_the_run():
    """More than run.restarts_max tuples in a row: the error names bolt, tuple, exit and line, with exit code 8."""

    class Never(Bolt):
        def process(self, tup):
            sys.exit("boom")

    with pytest.raises(ComponentError) as caught:
        judged(Never, {"run.restarts_max": 2})
    assert "leaver[task 3]: process of tuple ('" in str(caught.value)
    assert "raised SystemExit: boom (" in str(caught.value)
    assert "on 3 different tuples in a row" in str(caught.value)
    assert caught.value.exit_code == 8


def answer(value):
    return lambda self, *args: value


def leave(self, conf=None, context=None, **streams):
    """Be the method that exits; it can be called without arguments."""
    sys.exit("boom")


class Quiet(Spout):
    outputs = ("word",)
    next_tuple = answer(None)
    exhausted = end_reached = answer(True)


class End(Bolt):
    process = answer(None)


CALLED = "initialize next_tuple activate deactivate close report exhausted end_reached waits_for_acks"
ELSEWHERE = [(Quiet, name) for name in CALLED.split()] + [
    (End, name) for name in ("__init__", "initialize", "close", "report")
]


@pytest.mark.parametrize(("base", "method"), ELSEWHERE)
def test_an_exit_elsewhere_ends_the_run_with_its_name(base, method, caplog):
    """Where no tuple is to blame, a ComponentError names component and method, and the log has the traceback."""
    odd = type("Odd", (base,), {method: leave})

    class Made(Topology):
        words = (odd if base is Quiet else Quiet).spec()
        end = (odd if base is End else End).spec(inputs=[words])

    name, doing = ("words" if base is Quiet else "end"), "initialize" if method == "__init__" else method
    bounds = {"for_s": 1} if method == "waits_for_acks" else {"until": "end"}
    with pytest.raises(ComponentError, match=rf"{name}\[task \d\]: {doing} raised SystemExit: boom"):
        run_topology(Made, **bounds)
    assert 'sys.exit("boom")' in caplog.text


@pytest.mark.parametrize("method", ["ack", "fail", "fail_with"])
def test_an_exit_of_a_spout_that_hears_the_outcome(method):
    """A spout that exits in ack, fail or fail_with ends the run with a ComponentError that names it."""

    class Deaf(Judge):
        pass

    if method == "fail":
        Deaf.fail_with = None
    setattr(Deaf, method, lambda self, *args: sys.exit("boom"))

    class Made(Topology):
        judge = Deaf.spec()
        keeper = Keeper.spec(inputs=[judge])

    with pytest.raises(ComponentError, match=rf"judge\[task \d\]: {method} raised SystemExit: boom"):
        run_topology(Made, for_s=1)


def test_an_interrupt_is_no_failure():
    """KeyboardInterrupt leaves the engine at once, whichever bolt it comes up in."""

    class Interrupted(Keeper):
        def process(self, tup):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judged(Interrupted)


def test_a_file_that_exits_is_named(tmp_path):
    """A topology's file that calls sys.exit when it is imported is a TopologyError with its line."""
    (tmp_path / "script.py").write_text("import sys\nsys.exit('boom')\n")
    with pytest.raises(TopologyError, match=r"script\.py:2: SystemExit: boom"):
        load(str(tmp_path / "script.py"))


PARSED = """
import argparse
from streamparse import Bolt, Topology
from spouts.kafka import KafkaSpout

class Parse(Bolt):
    seen = []
    outputs = ["n"]
    def process(self, tup):
        parser = argparse.ArgumentParser("vendor")
        parser.add_argument("n", type=int)
        self.seen.append(parser.parse_args([tup.values.value]).n)

class Made(Topology):
    reader = KafkaSpout.spec(topics=["orders"], fields=["value"], group="readers", bootstrap="fake://exits",
                             retries_max=2)
    parse = Parse.spec(inputs=[reader])
"""


@pytest.mark.fake_only(OTHERS_NEED_IT)
def test_a_record_on_which_a_bolt_exits_is_dead_lettered(tmp_path, capsys, monkeypatch):
    (tmp_path / "exits.py").write_text(PARSED)
    monkeypatch.setenv("DOWNSPOUT_HOME", str(tmp_path / "home"))
    with FakeKafka("exits", clock=SYSTEM_CLOCK) as kafka:
        for value in range(20):
            kafka.produce("orders", b"bad" if value == 7 else str(value).encode(), partition=0)
        out = tmp_path / "out.json"
        code = main(["run", str(tmp_path / "exits.py"), "--until", "end", "--json", str(out)])
        letters = kafka.records("readers.dead-letters")
        (committed,) = kafka.committed("readers").values()
    seen = next(module.Parse.seen for name, module in list(sys.modules.items()) if name.endswith("exits")
                and hasattr(module, "Parse"))  # fmt: skip
    summary = json.loads(out.read_text())
    assert code == 0, capsys.readouterr().err
    assert Counter(seen) == Counter(n for n in range(20) if n != 7)
    assert [letter.value for letter in letters] == [b"bad"]
    assert {b"SystemExit", b"2", b"parse"} <= {value for _, value in letters[0].headers}
    assert committed.offset == 20
    assert (summary["reason"], summary["components"]["parse"]["errors"]) == ("end", 3)


LEAVING = """
import os
from os import _exit
from posix import _exit as posix_exit
from streamparse import Bolt, Spout, Topology

class Ones(Spout):
    outputs = ["topic", "partition", "offset"]
    def next_tuple(self):
        self.emit(["clicks", 0, 0], tup_id="1")

class Leaves(Bolt):
    def process(self, tup):
        if os.fork() == 0:
            {how}(0)
        {how}(0)

class Made(Topology):
    ones = Ones.spec()
    leaves = Leaves.spec(inputs=[ones])
"""


def left(folder, text, *command):
    """Run a command on a topology's file that ends the process; return what came of it."""
    (folder / "leaving.py").write_text(text)
    words = [sys.executable, "-m", "downspout", *command, "leaving.py"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["os._exit", "_exit", "posix_exit"])
def test_a_bolt_that_ends_the_process_is_no_success(tmp_path, how):
    """os._exit(0) in a bolt, by any of its names: exit code 8, and who called it at which record, said once.

    A process that it forks may leave.
    """
    found = left(tmp_path, LEAVING.replace("{how}", how), "run")
    assert found.returncode == ComponentError.exit_code
    assert found.stderr.count("downspout: leaves called os._exit(0) on clicks[0]@0 (leaving.py:16): the run ends") == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", [["run"], ["check"], ["run", "--workers", "2"], ["spark", "run"]])
def test_a_file_that_ends_the_process_is_no_success(tmp_path, command):
    """os._exit(0) where a topology's file is loaded, whichever command loads it: exit code 8, and the line."""
    found = left(tmp_path, "import os\n\nos._exit(0)\n", *command)
    assert found.returncode == ComponentError.exit_code
    assert "os._exit(0) was called (" in found.stderr
    assert "leaving.py:3): the run ends" in found.stderr


@pytest.mark.slow
def test_a_code_of_its_own_is_kept(tmp_path):
    found = left(tmp_path, "import os\n\nos._exit(77)\n", "run")
    assert found.returncode == 77
    assert "os._exit(77) was called (" in found.stderr

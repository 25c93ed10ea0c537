"""The simulation: what it proves, that it repeats, and that it can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from streamparse import Topology

from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from downspout.cli import main
from downspout.errors import TopologyError
from downspout.testing.simulation import Scenario, Sent, SimulationError, simulate
from downspout.testing.simulation.plan import KINDS, draw
from downspout.testing.simulation.run import run_seed
from downspout.testing.simulation.soak import load_scenarios, soak
from downspout.testing.simulation.troubles import Troubles
from downspout.testing.simulation.verdict import judge
from spouts.kafka import KafkaSpout
from tests.simulation.mutants import MUTANTS
from tests.simulation.scenarios import orders, words

ROOT = Path(__file__).resolve().parents[2]
TARGET = str(ROOT / "tests" / "simulation" / "scenarios.py")
SEEDS_TO_NOTICE = 60
"""In so many worlds each wrong version is noticed."""


def test_a_few_worlds() -> None:
    """Each row is there exactly once, all is committed, and an orderly end leaves nothing to do, whatever happens."""
    total = soak(TARGET, range(8))
    assert total.reports == []
    assert total.seeds == 8


@pytest.mark.slow
def test_a_hundred_worlds() -> None:
    """The same in 100 worlds, in which every kind of trouble has landed."""
    total = soak(TARGET, range(1000, 1100), jobs=2)
    assert total.reports == []
    assert total.landed.keys() >= KINDS.keys()


def test_a_seed_repeats_in_another_process() -> None:
    """A seed gives the same trace in another process, whatever order its sets and texts have."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from tests.simulation.scenarios import orders, words;"
        "from downspout.testing.simulation.run import run_seed;"
        "print(*(run_seed(one, seed).hash for seed in (1, 10) for one in (orders, words)))"
    )
    hashes = set()
    for order in ("0", "4321"):
        environ = {**os.environ, "PYTHONHASHSEED": order, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", code, str(ROOT)], env=environ, check=True, capture_output=True, text=True
        )
        hashes.add(done.stdout)
    assert len(hashes) == 1
    here = " ".join(run_seed(one, seed).hash for seed in (1, 10) for one in (orders, words))
    assert hashes == {f"{here}\n"}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_version_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of the product that is wrong in one place violates a property in one of a few worlds."""
    MUTANTS[name](monkeypatch)
    with pytest.raises(SimulationError):
        simulate(orders, range(SEEDS_TO_NOTICE))


def test_the_report_names_seed_record_and_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure tells the seed, what is wrong with which record, its last events, and how to run it again."""
    MUTANTS["write_what_is_there"](monkeypatch)
    report = soak(f"{TARGET}:orders", range(8)).reports[0]
    seed = int(report.removeprefix("seed ").partition(":")[0])
    assert f"scenarios.py:orders --seed {seed} --trace" in report
    place = report.splitlines()[1].split()[0]
    assert f"the last events about {place}:" in report
    assert f"acked {place}" in report


def test_the_command_replays_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    """``downspout simulate FILE --seed N --trace`` prints all that happens, and the same hash as any run of it."""
    assert main(["simulate", f"{TARGET}:orders", "--seed", "5", "--trace"]) == 0
    printed = capsys.readouterr().out
    assert run_seed(orders, 5).hash in printed
    assert "emits orders[" in printed


def test_the_command_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    """``downspout simulate FILE`` tells seeds, hours, records and trouble, and how far it is on stderr."""
    assert main(["simulate", TARGET, "--seeds", "2", "--jobs", "1"]) == 0
    printed = capsys.readouterr()
    assert "2 seeds" in printed.out
    assert "0 violations" in printed.out
    assert "2 of 2 seeds" in printed.err


def test_every_kind_of_trouble_has_its_way_to_land() -> None:
    """What the table of kinds names, a world can do; and worlds have each kind."""
    assert all(hasattr(Troubles, f"_{kind}") for kind in KINDS)
    assert set().union(*(draw(seed).kinds for seed in range(300))) == KINDS.keys()
    assert not any("crash" in draw(seed, without=("crash",)).kinds for seed in range(100))


def test_a_target_without_scenarios_is_refused() -> None:
    """A file without a scenario, or without the one that is named, is an error that says so."""
    with pytest.raises(TopologyError, match="holds no Scenario"):
        load_scenarios(str(ROOT / "tests" / "simulation" / "mutants.py"))
    with pytest.raises(TopologyError, match="no scenario 'nothing'"):
        load_scenarios(f"{TARGET}:nothing")


class Bare(Topology):
    """A topology without a sink."""

    spout = KafkaSpout.spec(topics=["orders"], fields=["origin", "value"])
    parse = JsonParseBolt.spec(inputs=[spout], fields=["number"])


def test_a_topology_without_a_sink_is_refused() -> None:
    """Where nothing is written there is nothing to judge, and the error says so."""
    with pytest.raises(TopologyError, match="has 0 Parquet sinks"):
        simulate(Scenario(Bare, lambda rng, number: b"", lambda record: []), [1])


class Anonymous(Topology):
    """A topology whose rows do not tell where they came from."""

    spout = KafkaSpout.spec(topics=["orders"], fields=["value"])
    sink = ParquetBolt.spec(inputs=[spout], directory="anonymous", schema={"value": "string"})


anonymous = Scenario(Anonymous, lambda rng, number: b"x", lambda record: [{"value": "x"}])


def test_rows_without_origins_are_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong in every world is one error with a cure, and no violation of each seed."""
    assert main(["simulate", f"{Path(__file__)}:anonymous", "--seeds", "4", "--jobs", "1"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("Anonymous: its rows have no column '_topic'. Try: the field origin in every tuple") == 1


def made(offset: int, **facts: object) -> Sent:
    """Return a record that was sent."""
    from downspout.testing.simulation import Message

    return Sent("t", "id", 0, offset, Message(b"1"), **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record", "found", "letter", "wrong"),
    [
        (made(0), [{"a": 1}], False, None),
        (made(0), [], False, "is missing"),
        (made(0), [{"a": 1}, {"a": 1}], False, "once too often"),
        (made(0), [{"a": 2}], False, "is missing"),
        (made(0), [{"a": 1}], True, "nothing was wrong"),
        (made(0, state="aborted"), [{"a": 1}], False, "aborted"),
        (made(0, state="aborted"), [], False, None),
        (made(0, removed=True), [], False, None),
        (made(0, removed=True), [{"a": 1}], False, None),
        (made(0, removed=True), [{"a": 1}, {"a": 1}], False, "once too often"),
    ],
)
def test_the_verdict_on_a_record(record: Sent, found: list[dict[str, int]], letter: bool, wrong: str | None) -> None:
    """A record's rows are there exactly once; at most once where it was removed; never where it was aborted."""
    place = ("t", "id", 0, 0)
    told = [what for _, what in judge([record], {place: found}, {place} if letter else set(), lambda _: [{"a": 1}])]
    assert any(wrong in what for what in told) if wrong else told == []


def test_rows_of_nothing_are_noticed() -> None:
    """A row of a record that nobody sent is a violation."""
    ((place, _),) = judge([], {("t", "id", 0, 7): [{"a": 1}]}, set(), lambda _: [])
    assert place == "t[0]@7"


def test_a_record_that_cannot_be_processed_needs_a_letter() -> None:
    """Where no rows are expected but a dead letter, its absence is a violation."""
    told = [what for _, what in judge([made(0)], {}, set(), lambda _: None)]
    assert told == ["could not be processed, and has no dead letter"]

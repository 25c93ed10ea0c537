"""Contenders and reports: bench/contenders.py, and the benchmarks that use them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest

from bench import chart, commits, environments, failures, growth, latency, race, storm, storm_run, track
from bench.contenders import ALL, DOWNSPOUT, LOOP, PEERS, RIVALS, Contender, available, chosen
from bench.environments import REQUIREMENTS, UnavailableError, folder_of, pins, python_of
from bench.harness import BenchError, Cost, HungError
from bench.shapes import Shape
from bench.track import Measured
from bolts.parquet import with_origins
from downspout.sink import Identities, SinkWriter

RECORD = DOWNSPOUT[0]


def cost(cpu_s: float) -> Cost:
    return Cost(wall_s=2 * cpu_s, cpu_s=cpu_s, rss_bytes=100 << 20)


@pytest.mark.parametrize("contender", RIVALS, ids=lambda contender: contender.key)
def test_each_peer_is_a_program_with_pins(contender) -> None:
    """Each peer has a program, pinned requirements, and a note that says what it promises."""
    assert (PEERS / f"{contender.environment}.py").exists()
    assert all("==" in pin for pin in pins(contender.environment))
    assert contender.note


def test_no_pins_are_left_behind() -> None:
    assert {path.stem for path in REQUIREMENTS.glob("*.txt")} == {contender.environment for contender in RIVALS}


def test_contenders_have_names_of_their_own() -> None:
    """Keys and names say which contender is meant; an unknown key is an error that names those there are."""
    assert len({contender.key for contender in ALL}) == len({contender.name for contender in ALL}) == len(ALL)
    assert chosen(["loop", "record"]) == [LOOP, RECORD]
    with pytest.raises(ValueError, match=r"'lop': there are record, .*loop"):
        chosen(["lop"])


def test_a_command_is_filled_in() -> None:
    """All braces of our command lines are known; the settings that make a contender what it is are in them."""
    line = RECORD.line("here:9", "topic", "group", Path("/out"), 5)
    assert line[0] == sys.executable
    assert {"kafka.bootstrap=here:9", "kafka.topics=topic", "kafka.group=group", "parquet.directory=/out"} <= set(line)


def test_other_pins_make_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment is made of its pins: a changed pin is never served from the old one."""
    monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path)
    (tmp_path / "peer.txt").write_text("# why\nthing==1.0\n")
    first = folder_of("peer")
    (tmp_path / "peer.txt").write_text("# another reason\nthing==1.0\n")
    assert folder_of("peer") == first
    (tmp_path / "peer.txt").write_text("thing==1.1\n")
    assert folder_of("peer") != first


@pytest.fixture
def without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let pip fail, with a cache and requirements of the test's own."""
    monkeypatch.setenv("DOWNSPOUT_CACHE", str(tmp_path))
    monkeypatch.setattr(environments.venv, "create", lambda folder, with_pip: folder.mkdir())

    def fail(command, **_) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="ERROR: No matching distribution\n")

    monkeypatch.setattr(environments.subprocess, "run", fail)
    return tmp_path


@pytest.mark.slow
def test_a_peer_that_cannot_be_installed_is_left_out_with_the_reason(
    without_pip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What pip said is told at once and stays for the report; the others run; nothing half-made is kept."""
    there, missing = available([RECORD, LOOP])
    assert there == [RECORD]
    assert missing == [f"{LOOP.name} is left out: ERROR: No matching distribution"]
    assert missing[0] in capsys.readouterr().err
    assert not folder_of(LOOP.environment).exists()
    with pytest.raises(UnavailableError, match="No matching distribution"):
        python_of(LOOP.environment)


@pytest.mark.slow
def test_starting_is_taken_off_and_shown() -> None:
    """Neither CPU time nor rates hold what starting takes; the loop is what all are compared with."""
    measured = [
        Measured(RECORD, 2_000_000, [cost(5.0), cost(4.0), cost(6.0)], [cost(1.0)] * 3, files=3),
        Measured(LOOP, 2_000_000, [cost(8.5)] * 3, [cost(0.5)] * 3, files=2),
    ]
    text = race.report(measured, 2_000_000, ["Faust is left out: why"], "2 cores.")
    assert f"| {RECORD.name} | 2.00 (1.50 – 2.50) | 0.50x | 1.00 | 250,000 | 100 MiB | 3 |" in text
    assert f"| {LOOP.name} | 4.00 (4.00 – 4.00) | 1.00x | 0.50 |" in text
    assert "* Faust is left out: why" in text


def test_growth_is_told_against_the_fewest_records() -> None:
    """A record that costs more among many shows it."""
    sizes = {10**5: cost(1.5), 10**6: cost(7.0)}
    measured = [Measured(RECORD, size, [taken], [cost(1.0)]) for size, taken in sizes.items()]
    text = growth.report(measured, "2 cores.")
    assert f"| {RECORD.name} | 100,000 | 5.00 | +0% |" in text
    assert f"| {RECORD.name} | 1,000,000 | 6.00 | +20% |" in text


def test_failures_are_told_against_the_fewest() -> None:
    """A share of bad records is told with what it costs against none."""
    shares = {0.0: cost(6.0), 0.1: cost(11.0)}
    measured = {("record", share): Measured(RECORD, 10**6, [taken], [cost(1.0)]) for share, taken in shares.items()}
    text = failures.report(measured, "2 cores.")
    assert f"| {RECORD.name} | 0.00% | 5.00 | 1.00x |" in text
    assert f"| {RECORD.name} | 10.00% | 10.00 | 2.00x |" in text


def test_commit_periods_are_told_against_the_longest() -> None:
    """Of each way to commit by itself."""
    taken = {("sync", 30_000): 6.0, ("sync", 10): 11.0, ("async", 30_000): 4.0}
    measured = {key: Measured(RECORD, 10**6, [cost(cpu_s)], [cost(1.0)]) for key, cpu_s in taken.items()}
    text = commits.report(measured, "2 cores.")
    assert "| `sync` | 30,000 | 5.00 | +0% |" in text
    assert "| `sync` | 10 | 10.00 | +100% |" in text
    assert "| `async` | 30,000 | 3.00 | +0% |" in text


class StubTrack:
    bootstrap = ""

    def __init__(self, *failing: str) -> None:
        self.failing = failing

    def run(self, contender, topic: str, records: int, shape: Shape | None = None) -> tuple[Cost, int]:
        if contender.key in self.failing:
            raise BenchError(f"{contender.name} on {topic}: ended with 1:\na traceback")
        return cost(1.0), 1


def test_a_peer_that_fails_is_left_out_and_ours_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong peer costs the race nothing but itself, and is told of; if we are wrong, there is no race."""
    monkeypatch.setattr(race, "publish", lambda *_, **__: None)
    measured, failed = race.race(StubTrack("loop"), [RECORD, LOOP], 100, runs=2)  # type: ignore[arg-type]
    assert [(one.contender, len(one.costs), len(one.start_ups)) for one in measured] == [(RECORD, 2, 2)]
    assert failed == [f"left out: {LOOP.name} on bench-few: ended with 1"]
    with pytest.raises(BenchError):
        race.race(StubTrack("record"), [RECORD, LOOP], 100, runs=2)  # type: ignore[arg-type]


@pytest.mark.slow
def test_what_hangs_is_started_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that hangs is in no figure and is told of; one that hangs twice fails."""
    monkeypatch.setattr(track, "START_S_MAX", 2.0)
    monkeypatch.setattr(track, "check", lambda *_: 1)
    first, run = tmp_path / "first", track.run
    program = f"test -e {first} && exit 0; sleep 60"

    def run_and_note(command, timeout_s: float, **given) -> Cost:
        # The second one ends at once, which may take a busy machine more than two seconds.
        try:
            return run(command, 60.0 if first.exists() and "sleep" not in command else timeout_s, **given)
        except HungError:
            first.touch()
            raise

    monkeypatch.setattr(track, "run", run_and_note)
    sometimes = Contender("loop", "a loop", ("sh", "-c", program), group=False)
    course = track.Track("", tmp_path)
    assert course.run(sometimes, "topic", 4)[1] == 1
    assert course.notes == ["a loop hung once and was started again; that is in no figure."]
    with pytest.raises(HungError, match="a loop on topic: did not end in 2 s"):
        course.run(replace(sometimes, command=("sleep", "60")), "topic", 4)


def test_a_latency_goal_is_met_or_missed() -> None:
    """p99 beyond the flush age and half a second is a miss, whatever the median says."""
    quick, slow = np.full(1_000, 1.4), np.where(np.arange(1_000) < 980, 0.5, 1.6)
    text = latency.report(
        [(RECORD, 1.0, latency.Latency(found, 2.0, 20_000)) for found in (quick, slow)], 60, "2 cores."
    )
    assert "| 1.40 s | 1.40 s | 1.40 s | 1.5 s: met |" in text
    assert "| 0.50 s | 1.60 s | 1.60 s | 1.5 s: missed |" in text


def test_a_record_is_durable_when_its_entry_is(tmp_path: Path) -> None:
    sink = SinkWriter(tmp_path, topology="bench", component="sink", columns=["n:int32"], writer="bench")
    sink.open()
    for offsets in ([0], [1, 2]):
        identities = Identities.of([("flights", "6jPMvg1sQ2uJmzGz1yRHQw", 3, offset, "") for offset in offsets])
        table = with_origins(pa.table({"n": pa.array(offsets, pa.int32())}), identities)
        sink.flush(identities, lambda mask, _, table=table: table.filter(mask))
    times = latency.durable_ns(tmp_path, 16)
    assert [bool(times[number]) for number in (3, 7, 11, 15, 0)] == [True, True, True, False, False]
    assert times[3] < times[7] == times[11]


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_chart_is_small_and_names_everybody(suffix: str, tmp_path: Path) -> None:
    """The picture is a file of less than 100 KB; as SVG its names and figures are text."""
    path = tmp_path / f"peers.{suffix}"
    chart.bars(path, {"ours": [1.9, 2.0, 2.2], "loop": [7.0, 7.7], "slow": [70.0]}, ["ours"])
    content = path.read_bytes()
    assert 1_000 < len(content) < 100_000
    if suffix == "svg":
        assert all(text in content for text in (b"ours", b"loop", b"slow", b"2.0", b"70.0, cut off"))


def test_peers_on_storm_are_told_against_the_stock_one() -> None:
    """Rate and CPU time of the window stand beside the CPU time of the whole run; without stock there is no factor."""
    peers = [storm.Peer(*one) for one in storm.PEERS[:3]]
    for peer, rate, jvm_s in zip(peers, (5_000.0, 10_000.0, 15_000.0), (100.0, 80.0, 20.0), strict=True):
        peer.runs.append(storm_run.Run(rate, {"jvm": jvm_s, "spout": 15.0, "bolt": 5.0}, 200_000, 30.0))
    text = storm.report(peers, 8.0, 10.0, "2 cores.")
    assert f"| {storm.STOCK} | 5,000 | 1.0 | 120.0 | 100 + 15 + 5 | 1.0 | 200,000 | 150.0 |" in text
    assert f"| {peers[2].name} | 15,000 | 3.0 | 40.0 | 20 + 15 + 5 | 3.0 | 200,000 | 150.0 |" in text
    assert f"| {peers[2].name} | 15,000 | – | 40.0 |" in storm.report(peers[2:], 8.0, 10.0, "2 cores.")


def test_a_window_on_storm_takes_the_cpu_time_between_its_ends() -> None:
    watch = storm_run.Watch(None, lambda: None)
    watch.samples = [(second, dict.fromkeys(storm_run.PIECES, 10.0 + second)) for second in (0.0, 1.0, 3.0)]
    watch.marks = [storm_run.Mark(0.0, 0), storm_run.Mark(2.0, 1_000_000), storm_run.Mark(3.0, 3_000_000)]
    run = storm_run.run_of(watch, watch.marks[1], watch.marks[2])
    assert (run.rate, run.cpu["jvm"], run.records, run.whole_cpu_s) == (2_000_000, 0.5, 3_000_000, 39.0)


def test_what_a_bolt_on_storm_must_have_counted_is_known_without_storm() -> None:
    """Each record of a prefix of each partition once: a record that came twice or never makes another sum."""
    flights = [orjson.loads(value) for _, value in storm.flights(20)]
    seen = [number for number in range(20) if number // 4 < [5, 3, 0, 4][number % 4]]
    assert storm_run.expected([5, 3, 0, 4]) == {
        "count": len(seen),
        "places": sum(((number // 4) << 2) + number % 4 for number in seen),
        "delay": sum(flights[number]["dep_delay"] or 0 for number in seen),
    }

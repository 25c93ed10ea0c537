"""The cost of short commit periods: a spout with a bolt that acks at once, so that each commit has news.

    python -m bench.commits [--records 1000000] [--periods 30000 1000 100 10 0] [--runs 3] [--quick]

CPU time excludes the start (a run over four records). After each run, the group must have committed the end.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from streamparse import Topology

from bench.contenders import Contender
from bench.flights import PARTITIONS, publish
from bench.harness import ROOT, BenchError, Cost, Options, begin, by_turns, load, machine, run, save, say, spread, table
from bench.track import RECORD_S_MAX, START_S_MAX, Measured, Track, track
from downspout.component import Bolt
from downspout.kafka.clusters import cluster_for
from spouts.kafka import KafkaSpout

MODES = ("sync", "async")


class Nothing(Bolt):
    """Acks at once."""

    def process(self, tup: Any) -> None:
        """Do nothing."""


class Acked(Topology):
    """The topology under test."""

    spout = KafkaSpout.spec(topics=["bench-flights"], fields=["value"], value_format="bytes", emit="record")
    nothing = Nothing.spec(inputs=[spout])


def contender(mode: str, period_ms: int) -> Contender:
    """Return the topology with a commit mode and a period."""
    settings = (f"kafka.commit={mode}", f"kafka.commit_period_ms={period_ms}")
    given = ("kafka.bootstrap={bootstrap}", "kafka.topics={topic}", "kafka.group={group}", *settings)
    options = [part for setting in given for part in ("--set", setting)]
    command = ("{python}", "-m", "downspout", "run", f"{__file__}:Acked", "--quiet", "--until", "end", *options)
    return Contender(f"{mode}-{period_ms}", mode, command, settings=settings)


def once(course: Track, one: Contender, topic: str, records: int, number: int) -> Cost:
    """Run it, and check the group's commits.

    Raises:
        BenchError: they are not at the end.
    """
    group = f"{topic}-{one.key}-{number}"
    command = one.line(course.bootstrap, topic, group, course.scratch, records)
    environment = {"PYTHONPATH": str(ROOT), "DOWNSPOUT_HOME": str(course.scratch / "home")}
    cost = run(command, START_S_MAX + records * RECORD_S_MAX, environment=environment, cwd=course.scratch)
    if (done := sum(at.offset for at in cluster_for(course.bootstrap).group_offsets(group).values())) != records:
        raise BenchError(f"{one.name}: {done:,} of {records:,} offsets are committed")
    return cost


def measure(course: Track, periods: Sequence[int], records: int, runs: int) -> dict[tuple[str, int], Measured]:
    """Measure each commit mode with each period."""
    publish(course.bootstrap, "bench-few", PARTITIONS)
    publish(course.bootstrap, "bench-all", records)
    found = {(mode, period): Measured(contender(mode, period), records) for mode in MODES for period in periods}
    for number, (key, one) in by_turns([*found.items()], runs):
        one.start_ups.append(once(course, one.contender, "bench-few", PARTITIONS, number))
        one.costs.append(once(course, one.contender, "bench-all", records, number))
        say(f"run {number + 1}: {key}: {one.costs[-1].cpu_s:.2f} CPU-s, {one.costs[-1].wall_s:.2f} s")
    return found


def report(measured: Mapping[tuple[str, int], Measured], described: str) -> str:
    """Return the Markdown report; the first period is the reference."""
    base: dict[str, float] = {}
    rows = []
    for (mode, period_ms), one in measured.items():
        middle = statistics.median(one.each_us)
        change = middle / base.setdefault(mode, middle) - 1
        rows.append([f"`{mode}`", f"{period_ms:,}", spread(one.each_us), f"{change:+.0%}", f"{one.rate:,.0f}"])
    first = next(iter(measured.values()))
    columns = ("kafka.commit", "commit_period_ms", "CPU-s per million", "against the longest", "records/s")
    return "\n".join([
        "# What short commit periods cost", "",
        f"{first.records:,} records, {PARTITIONS} partitions, record mode, in front of a bolt that acks at once; "
        f"{len(first.costs)} interleaved runs, median (min – max), without what starting costs. "
        "`python -m bench.commits`", "", described, "", table(columns, rows),
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Publish, measure, print and save."""
    options = Options(__doc__, runs=3)
    options.size("--records", 1_000_000, 20_000, type=int)
    options.size("--periods", [30_000, 1_000, 100, 10, 0], [30_000, 10], type=int, nargs="+")
    given: Any = options.read(arguments)
    before = load()
    with track() as course:
        measured = measure(course, sorted(given.periods, reverse=True), given.records, given.runs)
    figures = [[*key, one] for key, one in measured.items()]
    save(given.results, "commits", report(measured, machine(before)), figures, course.notes)


if __name__ == "__main__":
    begin(main)

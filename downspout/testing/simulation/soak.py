"""Many seeds, over several processes, with progress and a summary."""

from __future__ import annotations

import importlib
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from downspout.engine.graph import nearest
from downspout.engine.load import load_module
from downspout.errors import TopologyError
from downspout.formatting import counted
from downspout.system.process import end_with_parent
from downspout.testing.simulation.run import Outcome, Scenario, error_outcome, run_seed

__all__ = ["SoakTotals", "load_scenarios", "soak"]

CHUNK = 25  # Seeds that a worker runs before it reports


@dataclass
class SoakTotals:
    """Figures of many seeds."""

    seeds: int = 0  # that were run
    simulated_s: float = 0.0  # virtual seconds
    records: int = 0  # written
    emitted: int = 0  # by spouts, repeats included
    chunks: int = 0  # tuples of spouts that were chunks
    rebalances: int = 0  # of consumer groups
    injected: Counter[str] = field(default_factory=Counter)  # faults, by kind
    reports: list[str] = field(default_factory=list)  # of the seeds that violated a property, the whole text of each

    def add(self, other: SoakTotals) -> None:
        """Take another's figures in."""
        self.seeds += other.seeds
        self.simulated_s += other.simulated_s
        self.records += other.records
        self.emitted += other.emitted
        self.chunks += other.chunks
        self.rebalances += other.rebalances
        self.injected += other.injected
        self.reports += other.reports

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.injected.items()))
        return (
            f"{self.seeds:,} seeds, {self.simulated_s / 3600:,.1f} simulated hours, {self.records:,} records "
            f"({self.emitted:,} emitted; {self.chunks:,} chunks), {self.rebalances:,} rebalances, "
            f"{counted(len(self.reports), 'violation')}\n"
            f"faults: {faults or 'none'}"
        )


def load_scenarios(target: str) -> dict[str, Scenario]:
    """Return the scenarios that a target names: ``FILE`` or ``module`` (all in it), with ``:NAME`` one of them.

    Raises:
        TopologyError: there is no such file, or no such scenario in it.
    """
    place, _, wanted = target.rpartition(":") if ":" in target else (target, "", "")
    module = load_module(place, "a scenario")
    found = {name: value for name, value in vars(module).items() if isinstance(value, Scenario)}
    if not found:
        raise TopologyError(f"{place} holds no Scenario", cure="orders = Scenario(Orders, records=…, rows=…)")
    if wanted and wanted not in found:
        raise TopologyError(f"{place} has no scenario {wanted!r}", cure=nearest(wanted, found))
    return {wanted: found[wanted]} if wanted else found


def scenario_of(scenarios: Mapping[str, Scenario], seed: int) -> str:
    """Return the name of the one that a seed is of: they take turns."""
    return list(scenarios)[seed % len(scenarios)]


def soak(
    target: str,
    seeds: Sequence[int],
    *,
    jobs: int = 1,
    progress: TextIO | None = None,
    tell: Callable[[str], None] = lambda report: None,
    failures_max: int = 5,
) -> SoakTotals:
    """Run seeds, each in one of the target's scenarios in turn.

    Args:
        progress: where to say how far it is.
        tell: called with the report of each violation, as it is found.
        failures_max: stop after so many violations.
    """
    total, started = SoakTotals(), time.monotonic()
    redrawn = progress is not None and progress.isatty()
    parts = [list(seeds[at : at + CHUNK]) for at in range(0, len(seeds), CHUNK)]
    for part in _results(target, parts, jobs):
        total.add(part)
        for report in part.reports:
            tell(report)
        if progress is not None:
            passed = time.monotonic() - started
            line = (
                f"{total.seeds:,} of {len(seeds):,} seeds, {total.simulated_s / 3600:,.1f} simulated hours in "
                f"{passed:,.0f} s, {counted(len(total.reports), 'violation')}"
            )
            print(f"\r{line}" if redrawn else line, end="" if redrawn else "\n", file=progress, flush=True)
        if len(total.reports) >= failures_max:
            break
    if redrawn:
        print(file=progress)
    return total


def _results(target: str, parts: list[list[int]], jobs: int) -> Iterator[SoakTotals]:
    if jobs <= 1:
        yield from (run_part(target, part, list(sys.path)) for part in parts)
        return
    context = multiprocessing.get_context("spawn")  # a forked process would inherit Arrow's threads, half of each
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=end_with_parent) as pool:
        try:
            yield from pool.map(run_part, [target] * len(parts), parts, [list(sys.path)] * len(parts))
        finally:
            pool.shutdown(cancel_futures=True)


def run_part(target: str, seeds: Sequence[int], path: list[str]) -> SoakTotals:
    """Run some seeds in this process."""
    if path != sys.path:
        sys.path[:] = path
        importlib.invalidate_caches()
    scenarios = load_scenarios(target)
    total = SoakTotals()
    for seed in seeds:
        name = scenario_of(scenarios, seed)
        where = target if target.endswith(f":{name}") else f"{target}:{name}"
        again = f"downspout simulate {_short(where)} --seed {{seed}} --trace"
        try:
            outcome = run_seed(scenarios[name], seed, again=again)
        except TopologyError:
            raise  # it is wrong in every world
        except Exception as error:
            total.reports.append(error_outcome(seed, error))
            total.seeds += 1
            continue
        total.add(_of(outcome))
    return total


def _of(outcome: Outcome) -> SoakTotals:
    """Return the figures of one seed."""
    return SoakTotals(
        1,
        outcome.simulated_s,
        outcome.records,
        outcome.emitted,
        outcome.chunks,
        outcome.rebalances,
        outcome.injected,
        [outcome.report] if outcome.violations else [],
    )


def _short(target: str) -> str:
    """Return a target relative to the working directory, where it lies below it."""
    path, colon, name = target.rpartition(":")
    here = f"{Path.cwd()}/"
    return f"{path.removeprefix(here)}{colon}{name}"

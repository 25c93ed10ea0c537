"""``downspout simulate``: a topology in simulated worlds, with everything going wrong that can."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "simulate", help="run a topology in simulated worlds, with trouble: Kafka, disk, time and chance from a seed"
    )
    parser.add_argument("target", metavar="FILE[:NAME]", help="tests/simulated.py, or module:scenario")
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many worlds (100)")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="SEED", help="the first of them (0)")
    parser.add_argument("--seed", type=int, metavar="SEED", help="this world alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all that happens")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (one per core)")
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    """Run; exit with 1 if a property was violated."""
    from downspout.testing.simulation.soak import soak

    if arguments.seed is not None:
        return _one(arguments)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    total = soak(arguments.target, seeds, jobs=arguments.jobs, progress=sys.stderr)
    for report in total.reports:
        print(report, end="\n\n")
    print(total)
    return 1 if total.reports else 0


def _one(arguments: argparse.Namespace) -> int:
    from downspout.testing.simulation.run import run_seed
    from downspout.testing.simulation.soak import load_scenarios

    scenarios = load_scenarios(arguments.target)
    name = list(scenarios)[arguments.seed % len(scenarios)]
    again = f"downspout simulate {arguments.target} --seed {{seed}} --trace"
    outcome = run_seed(scenarios[name], arguments.seed, again=again)
    if arguments.trace:
        for event in outcome.trace.events:
            print(event)
    print(outcome.report or f"seed {outcome.seed}: no violation; trace {outcome.hash}")
    return 1 if outcome.violations else 0

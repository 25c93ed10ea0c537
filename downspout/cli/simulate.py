"""``downspout simulate``: run a topology in simulated worlds with injected faults."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from downspout.cli.arguments import exit_codes, positive, sentence


def add_parser(commands: Any) -> None:
    """Add the command."""
    text = "run a topology in simulated worlds with faults, reproducible by seed"
    parser = commands.add_parser(
        "simulate",
        help=text,
        description=sentence(text),
        epilog=exit_codes(_0="no world violated a property", _1="a world did, or an error without a code below"),
    )
    parser.add_argument("target", metavar="FILE[:NAME]", help="tests/simulated.py, or module:scenario")
    parser.add_argument("--seeds", type=positive, default=100, metavar="N", help="number of worlds (100)")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="SEED", help="seed of the first world (0)")
    parser.add_argument("--seed", type=int, metavar="SEED", help="run only the world of this seed")
    parser.add_argument("--trace", action="store_true", help="print every event; needs --seed")
    parser.add_argument(
        "--jobs", type=positive, default=os.cpu_count() or 1, metavar="N", help="number of processes (one per core)"
    )
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    """Run; exit with 1 if a property was violated."""
    from downspout.testing.simulation.run import load_scenarios, scenario_of, soak

    if arguments.seed is not None:
        return _one(arguments)
    seeds = range(arguments.first, arguments.first + arguments.seeds)

    def tell(report: str) -> None:
        print(f"\n{report}", end="\n\n", flush=True)

    total = soak(arguments.target, seeds, jobs=arguments.jobs, progress=sys.stderr, tell=tell)
    print(total)
    scenarios = load_scenarios(arguments.target)
    ran = {scenario_of(scenarios, seed) for seed in seeds}
    if left := [name for name in scenarios if name not in ran]:
        print(f"with so few seeds these scenarios were not run: {', '.join(left)}")
    return 1 if total.reports else 0


def _one(arguments: argparse.Namespace) -> int:
    from downspout.testing.simulation.run import load_scenarios, run_seed, scenario_of

    scenarios = load_scenarios(arguments.target)
    name = scenario_of(scenarios, arguments.seed)
    again = f"downspout simulate {arguments.target} --seed {{seed}} --trace"
    outcome = run_seed(scenarios[name], arguments.seed, again=again)
    if arguments.trace:
        for event in outcome.trace.events:
            print(event)
    print(outcome.report or f"seed {outcome.seed}: no violation; trace {outcome.hash}")
    return 1 if outcome.violations else 0

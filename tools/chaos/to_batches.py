"""`make chaos TO=batches`: `make batch-demo` at length: each job and kind of batches is killed 100 times."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from demos.screen import Screen
from demos.shared import run_alone
from demos.to_batches import BatchDemo


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill, and compare; return the exit code: 0 right, 1 something is wrong or too few kills hit, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="tools.chaos.to_batches", description=__doc__)
    parser.add_argument("--flights", type=int, default=200_000, help="how many records (200,000)")
    parser.add_argument("--kills", type=int, default=100, help="how often each topology is killed (100)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (1)")
    given = parser.parse_args(arguments)
    screen = Screen()
    return run_alone(screen, BatchDemo(given.flights, given.kills, screen, given.seed, ["local"]).run)


if __name__ == "__main__":
    sys.exit(main())

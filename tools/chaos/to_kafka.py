"""`make chaos TO=kafka`: `make kafka-demo` at length, without Spark: 100 kills, and 10 of the broker."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from demos.screen import Screen
from demos.shared import run_alone
from demos.to_kafka import KafkaDemo


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill, audit; return the exit code: 0 right, 1 something is wrong or too few kills hit, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="tools.chaos.to_kafka", description=__doc__)
    parser.add_argument("--flights", type=int, default=200_000, help="how many records (200,000)")
    parser.add_argument("--kills", type=int, default=100, help="how often the topology is killed (100)")
    parser.add_argument("--broker-kills", type=int, help="how often the broker is killed (a tenth of that)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (1)")
    given = parser.parse_args(arguments)
    screen = Screen()
    broker_kills = given.kills // 10 if given.broker_kills is None else given.broker_kills
    demo = KafkaDemo(given.flights, given.kills, screen, broker_kills, given.seed, with_spark=False)
    return run_alone(screen, demo.run)


if __name__ == "__main__":
    sys.exit(main())

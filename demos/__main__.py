"""The main job on 336,776 real flights, in one process, on a real Storm or on Spark.

python -m demos --on local|storm|spark       # or: make demo, make storm-demo, make spark-demo
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo on an engine with the other options; return its exit code."""
    parser = argparse.ArgumentParser(prog="demos", description=__doc__.split("\n")[0], add_help=False)
    parser.add_argument("--on", choices=("local", "storm", "spark"), default="local", help="the engine (local)")
    given, others = parser.parse_known_args(arguments)
    code: int = importlib.import_module(f"demos.on_{given.on}").main(others)
    return code


if __name__ == "__main__":
    sys.exit(main())

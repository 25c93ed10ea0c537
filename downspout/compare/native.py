"""The process that runs a native twin: ``python -m downspout.compare.native PLAN.json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from downspout.errors import DownspoutError, TopologyError
from downspout.local.load import load_module

__all__ = ["run"]

SESSION = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""By default Spark writes timestamps in a form of old, in which they have no zone."""


def run(plan: Mapping[str, Any]) -> None:
    """Run the twin on batches of the ranges, and write each of its tables.

    Args:
        plan: ``target`` (file or module), ``spouts`` (options of the source by spout), ``tables`` (directory by sink).

    Raises:
        TopologyError: the module cannot be imported, has no ``twin``, or that gives no such table.
    """
    from downspout.spark import register
    from downspout.spark.session import spark_session

    target = plan["target"]
    twin = getattr(load_module(target), "twin", None)
    if not callable(twin):
        raise TopologyError(f"{target} has no function twin", cure="def twin(spark, records): … return {sink: table}")
    with spark_session("compare", config=SESSION) as spark:
        register(spark)
        records = {
            name: spark.read.format("downspout").options(**options).load() for name, options in plan["spouts"].items()
        }
        if len(plan["tables"]) > 1:  # each would read the topics by itself
            records = {name: frame.persist() for name, frame in records.items()}
        tables = twin(spark, records)
        if absent := [name for name in plan["tables"] if name not in tables]:
            raise TopologyError(f"{target}: twin gives no table {', '.join(absent)}", cure="the names of the sinks")
        for name, directory in plan["tables"].items():
            tables[name].write.mode("overwrite").parquet(directory)


def main() -> int:
    """Run what the plan in the file says; return the exit code."""
    try:
        run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    except DownspoutError as error:
        print(f"downspout: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The process that runs a native Spark version: ``python -m downspout.compare.native PLAN.json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout.engine.load import load_module
from downspout.errors import DownspoutError, TopologyError
from downspout.spark.failures import explained, retried

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SESSION = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""By default, Spark writes timestamps in an old format without a zone."""


def run(plan: Mapping[str, Any]) -> None:
    """Run the native Spark version of a plan on the ranges, and write its tables."""
    from downspout.spark import register
    from downspout.spark.session import spark_session

    target = plan["target"]
    module = load_module(target)
    make_tables = getattr(module, "native", None)
    if not callable(make_tables):
        raise TopologyError(
            f"{target} has no function native", cure="def native(spark, records): … return {sink: table}"
        )
    with explained(), spark_session("compare", config=SESSION) as spark:
        register(spark)
        retried(lambda: _write_tables(spark, make_tables, plan))


def _write_tables(spark: SparkSession, make_tables: Callable[..., Any], plan: Mapping[str, Any]) -> None:
    records = {
        name: spark.read.format("downspout").options(**options).load() for name, options in plan["spouts"].items()
    }
    if len(plan["tables"]) > 1:  # otherwise each would read the topics again
        records = {name: frame.persist() for name, frame in records.items()}
    tables = make_tables(spark, records)
    if absent := [name for name in plan["tables"] if name not in tables]:
        raise TopologyError(
            f"{plan['target']}: native returns no table {', '.join(absent)}", cure="a table for each sink, by its name"
        )
    for name, directory in plan["tables"].items():
        tables[name].write.mode("overwrite").parquet(directory)


def main() -> int:
    """Run the plan in the file; return the exit code."""
    try:
        run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    except DownspoutError as error:
        print(f"downspout: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

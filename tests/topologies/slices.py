"""Running the flight delays on a slice of the flights, in this process, on a FakeKafka or a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.dataset as ds

from downspout.engine import RunResult
from downspout.run.runner import run
from tests.spout.spout_driver import Kafka

COUNT = 2_500


def run_flight_delays(kafka: Kafka, output: Path, group: str = "g", **options: Any) -> RunResult:
    """Run the topology into directories below ``output``, to the end unless ``options`` say otherwise.

    Options are settings, with ``__`` for the dot: ``run__records=100``.
    """
    return run(
        "topologies.flight_delays:FlightDelays",
        overrides=[f"{name}:parquet.directory={output / name}" for name in ("flights", "route_delays")],
        options={
            "kafka.bootstrap": kafka.bootstrap,
            "kafka.group": group,
            **({"run.until": "end"} if not options else {}),
            **{key.replace("__", "."): value for key, value in options.items()},
        },
    )


def finished_route_hours(output: Path) -> pd.DataFrame:
    """Finish the partial aggregates with pandas, under the names of the reference."""
    partials = ds.dataset(output / "route_delays", format="parquet").to_table().to_pandas()
    return (
        partials.groupby(["route", "hour"])
        .agg(
            flights=("count", "sum"),
            departed=("count_dep_delay", "sum"),
            arrived=("count_arr_delay", "sum"),
            dep_delay_sum=("sum_dep_delay", "sum"),
            dep_delay_max=("max_dep_delay", "max"),
            arr_delay_sum=("sum_arr_delay", "sum"),
            arr_delay_max=("max_arr_delay", "max"),
        )
        .reset_index()
    )

"""The main job into an S3 bucket, exactly once, while the process is killed and requests go wrong.

    python -m demos.drill s3            # or: make s3-demo

1. starts its own Kafka broker and publishes the flights;
2. starts an S3 server, and before it a proxy that answers one request in forty with ``503 SlowDown`` and loses the
   answer to another; runs ``topologies/flight_delays.py`` into a bucket, kills it five times with ``kill -9``
   while it puts, then lets it run to the end;
3. audits both directories with ``downspout audit --deep``;
4. reads the flights with pandas, Polars, DuckDB and Spark (``s3a://``), and compares what each counts and adds up
   with the package.

Each run begins anew. ``FLIGHTS=20000`` takes fewer, ``KILLS=3`` kills less.
"""

from __future__ import annotations

import os
import random
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd

from demos.audit import Finding, audited
from demos.drill import Drill, Step
from demos.s3 import KEYS, FaultProxy, s3_server
from downspout.system import jars

TARGET = "topologies/flight_delays.py"
PLACES = {"flights": "s3://bucket/flights", "route_delays": "s3://bucket/route_delays"}
FILES = "bucket/flights/*/*.parquet"
ONE_IN = 40
"""Of this many requests, one is answered by 503, and one answer is lost."""
PUTS_PER_KILL = 20  # at most; two flushes of the three tasks take about so many
SUMS = """SELECT carrier, count(*) AS flights,
  count(DISTINCT CAST(_partition AS BIGINT) * 1000000000 + _offset) AS records,
  sum(distance) AS distance, sum(dep_delay) AS dep_delay, sum(arr_delay) AS arr_delay
FROM flights GROUP BY carrier ORDER BY carrier"""


class Weather:
    """Decides the fault of each request; most have none."""

    def __init__(self, seed: int) -> None:
        self._random, self._lock = random.Random(seed), threading.Lock()
        self.puts = 0
        self.done: Counter[str] = Counter()

    def __call__(self, line: str) -> str | None:
        """Decide about one request, by its first line."""
        with self._lock:
            self.puts += line.startswith(("PUT", "POST"))
            number = self._random.randrange(ONE_IN)
            what = {0: "slow", 1: "lose"}.get(number)
            self.done[what or "pass"] += 1
            return what


class S3Demo(Drill):
    """One run of the demo."""

    NAME, KILLS, jars = "s3", 5, ("spark-s3",)

    def steps(self) -> Iterator[Step]:
        """Yield what is done with a server."""
        weather = Weather(self.random.randrange(1 << 32))
        url = self.opened.enter_context(s3_server())
        proxy = self.opened.enter_context(FaultProxy(url, weather))
        title = f"downspout run {TARGET} into s3://bucket, killed {self.kills} times"
        yield title, lambda: self.write(proxy.url, weather)
        yield "downspout audit --deep", lambda: self.audit(url)
        yield "Read the flights", lambda: self.read(url, self.frame)

    def write(self, url: str, weather: Weather) -> Iterator[Finding]:
        """Run the topology to the end, through all kills, and yield what there is to say."""
        flush_rows = max(min(self.count // (2 * self.kills + 2), 30_000), 50)
        settings = [
            f"kafka.bootstrap={self.kafka.bootstrap}", f"kafka.topics={self.topic}",
            f"kafka.group=s3-demo-{uuid.uuid4().hex[:8]}", "kafka.emit=chunk", "kafka.commit_period_ms=500",
            f"parquet.flush_rows={flush_rows}", "parquet.flush_age_s=1",
            *(f"{name}:parquet.directory={place}" for name, place in PLACES.items()),
        ]  # fmt: skip
        yield from self.run_killed(
            TARGET, settings, lambda: weather.puts, "objects were put", PUTS_PER_KILL, environment=environment(url)
        )
        faults = f"{weather.done['slow']} answers of 503 SlowDown, {weather.done['lose']} lost answers"
        yield Finding(
            weather.done["slow"] > 0 and weather.done["lose"] > 0,
            f"{weather.done.total():,} requests, {weather.puts:,} of them puts and copies; {faults}",
        )

    def audit(self, url: str) -> Iterator[Finding]:
        """Yield the verdict of ``downspout audit`` on each directory."""
        for place in PLACES.values():
            with self.screen.busy(f"auditing {place}"):
                found = audited(place, "--deep", environment=environment(url))
            yield Finding(found.right, f"{place}: {found.text}")

    def read(self, url: str, frame: pd.DataFrame) -> Iterator[Finding]:
        """Yield each reader's result, which must equal pandas' from the package."""
        wanted = sums_of(frame)
        for name, reader in READERS.items():
            with self.screen.busy(f"reading with {name}"):
                found = reader(url)
            same = found == wanted
            rows = sum(row[1] for row in found)
            yield Finding(same, f"{name}: {rows:,} flights; sums {'equal' if same else 'differ from'} the package's")


def environment(url: str) -> dict[str, str]:
    """Return the environment of a process that uses the store at a URL."""
    return {**os.environ, **KEYS, "DOWNSPOUT_PARQUET_STORAGE_OPTIONS": f"endpoint={url}"}


def sums_of(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Return each reader's expected result."""
    frame = frame.reset_index(drop=True).assign(_partition=0)
    return _by_pandas(frame.assign(_offset=frame.index))


def _by_pandas(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    frame = frame.assign(record=frame["_partition"].astype("int64") * 1_000_000_000 + frame["_offset"])
    groups = frame.groupby("carrier")
    sums = groups[["distance", "dep_delay", "arr_delay"]].sum(min_count=1)
    counts, records = groups.size(), groups["record"].nunique()
    return _plain((carrier, counts[carrier], records[carrier], *sums.loc[carrier]) for carrier in sorted(groups.groups))


def _plain(rows: Any) -> list[tuple[Any, ...]]:
    """Return rows as Python's own values."""
    return [(row[0], *(None if pd.isna(value) else int(value) for value in row[1:])) for row in rows]


def _arrow_store(url: str) -> Any:
    from pyarrow.fs import S3FileSystem

    return S3FileSystem(
        access_key=KEYS["AWS_ACCESS_KEY_ID"], secret_key=KEYS["AWS_SECRET_ACCESS_KEY"], region=KEYS["AWS_REGION"],
        endpoint_override=url,
    )  # fmt: skip


def with_pandas(url: str) -> list[tuple[Any, ...]]:
    """Read with pandas, by Arrow's S3."""
    return _by_pandas(pd.read_parquet("bucket/flights", filesystem=_arrow_store(url)))


def with_duckdb(url: str) -> list[tuple[Any, ...]]:
    """Read with DuckDB, through an Arrow dataset; its own extension for S3 would come from its makers' server."""
    import duckdb
    from pyarrow import dataset

    with duckdb.connect() as connection:
        connection.register("flights", dataset.dataset("bucket/flights", filesystem=_arrow_store(url)))
        return _plain(connection.execute(SUMS).fetchall())


def with_polars(url: str) -> list[tuple[Any, ...]]:
    """Read with Polars' own S3."""
    import polars

    options = {**{name.lower(): value for name, value in KEYS.items()}, "endpoint_url": url, "aws_allow_http": "true"}
    frame = polars.scan_parquet(f"s3://{FILES}", storage_options=options, hive_partitioning=False)
    return _plain(polars.SQLContext(flights=frame).execute(SUMS).collect().rows())


def with_spark(url: str) -> list[tuple[Any, ...]]:
    """Read with Spark, by Hadoop's s3a."""
    from downspout.spark.session import spark_session

    with spark_session("s3-demo", config=spark_config(url)) as spark:
        spark.read.parquet("s3a://bucket/flights").createOrReplaceTempView("flights")
        return _plain(tuple(row) for row in spark.sql(SUMS).collect())


def spark_config(url: str) -> dict[str, str]:
    """Return Spark's settings for the store at a URL."""
    return {
        "spark.jars": ",".join(map(str, jars.resolve("spark-s3"))),
        "spark.hadoop.fs.s3a.endpoint": url,
        "spark.hadoop.fs.s3a.endpoint.region": KEYS["AWS_REGION"],
        "spark.hadoop.fs.s3a.access.key": KEYS["AWS_ACCESS_KEY_ID"],
        "spark.hadoop.fs.s3a.secret.key": KEYS["AWS_SECRET_ACCESS_KEY"],
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }


READERS: dict[str, Any] = {
    "pandas": with_pandas, "Polars": with_polars, "DuckDB": with_duckdb, "PySpark (s3a)": with_spark
}  # fmt: skip

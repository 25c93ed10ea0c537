"""Flights as Avro, by a schema registry whose schemas grow, into Parquet, a Delta table and an Iceberg table.

    python -m demos.drill formats            # or: make formats-demo

1. starts its own Kafka broker and a schema registry, and publishes the flights as Avro: half with one schema, half with
   a later one that adds a column, and a few with a schema whose distance is a text;
2. runs ``topologies/flight_avro.py`` into Parquet, and beside it two exports that follow the directory, into a Delta
   and into an Iceberg table; kills each of the three with ``kill -9`` again and again; then lets all come to the end;
3. audits the directory, and looks for the odd records among the dead letters;
4. reads all three with pandas, Polars, DuckDB, Spark and pyiceberg, and compares with the package.

Each run begins anew. ``FLIGHTS=20000`` takes fewer, ``KILLS=3`` kills less.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from demos.audit import Finding, audited
from demos.drill import Drill, Step
from demos.flights_data import PARTITIONS, partition_of
from demos.screen import Screen
from downspout.kafka.client import KafkaCluster
from downspout.sink.log import CommitLog
from downspout.system import jars
from downspout.testing.schema_registry import SchemaRegistry

TARGET = "topologies/flight_avro.py"
TOPIC, DEAD_LETTERS = "flights-avro", "flights-avro.dead-letters"
ODD = 3
"""Number of records with the incompatible schema."""
KILL_WITHIN_S = 2.0
FIRST: dict[str, Any] = {
    "carrier": "string", "flight": "int", "origin": "string", "dest": "string", "distance": "int",
    "dep_delay": ["null", "int"], "arr_delay": ["null", "int"], "month": "int",
}  # fmt: skip
LATER = FIRST | {"tailnum": ["null", "string"]}
INCOMPATIBLE = FIRST | {"distance": "string"}
Sums = tuple[int, int, int, int]
"""Rows, different records, the sum of ``distance``, and rows with a ``tailnum``."""
SQL = """SELECT count(*), count(DISTINCT CAST(_partition AS BIGINT) * 1000000000 + _offset),
  sum(distance), count(tailnum)
FROM flights"""


class FormatsDemo(Drill):
    """One run of the demo."""

    NAME, KILLS = "formats", 5
    PUBLISHES = "Start Kafka and a schema registry, and publish the flights as Avro"

    def __init__(self, flights: int, kills: int, screen: Screen, *, with_spark: bool = True) -> None:
        super().__init__(flights, kills, screen)
        self.directory, self.with_spark = self.folder / "flights", with_spark
        self.jars = ["spark-delta"] if with_spark else []

    def steps(self) -> Iterator[Step]:
        """Yield what is done with the flights."""
        yield f"downspout run {TARGET}, and two exports, each killed {self.kills} times", self.write
        yield "downspout audit, and the dead letters", self.audit
        yield "Read the Parquet files, the Delta table and the Iceberg table", lambda: self.read(wanted(self.frame))

    # --- 1 ---

    def publish(self) -> None:
        """Write the flights into a new topic, and the odd ones among them."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.registry = self.opened.enter_context(SchemaRegistry())
        cluster = KafkaCluster(self.kafka.bootstrap)
        for topic in (TOPIC, DEAD_LETTERS):
            cluster.delete_topic(topic)
            cluster.ensure_topic(topic, PARTITIONS)
        first, later, odd = (Writer(self.registry, fields) for fields in (FIRST, LATER, INCOMPATIBLE))
        rows, half = documents(self.frame), len(self.frame) // 2
        odd_at = {len(rows) * (number + 1) // (ODD + 1) for number in range(ODD)}
        producer = cluster.producer(client={"linger_ms": 20, "batch_size": 256 * 1024})
        try:
            with self.screen.counting("flights") as progress:
                for number, row in enumerate(rows):
                    partition = partition_of(row["carrier"].encode())
                    value = (first if number < half else later)(row)
                    producer.send(TOPIC, key=None, value=value, partition=partition)
                    if number in odd_at:
                        producer.send(TOPIC, key=None, value=odd({**row, "distance": "far"}), partition=partition)
                    if number % 1_000 == 0:
                        progress(number, len(rows))
                producer.flush()
                progress(len(rows), len(rows))
        finally:
            producer.close()
        self.screen.say(f"{half:,} flights by schema {first.number}, {len(rows) - half:,} by schema {later.number}, "
                        f"{ODD} by schema {odd.number}, whose distance is a text")  # fmt: skip

    # --- 2 ---

    def write(self) -> Iterator[Finding]:
        """Run and export to the end, through all kills, and yield what there is to say."""
        ended = threading.Event()
        exports = {form: Killed(self.export(form), self.folder / f"{form}.log", self.kills, ended) for form in FORMS}
        for export in exports.values():
            export.start()
        try:
            yield from self.run_topology()
        finally:
            ended.set()
            for export in exports.values():
                export.join()
        for form, export in exports.items():
            with (self.folder / f"{form}.log").open("ab") as log:
                code = subprocess.run(self.export(form), stdout=log, stderr=log, check=False).returncode
            said = (self.folder / f"{form}.log").read_text(encoding="utf-8")
            text = f"{form}: {export.kills} kills of the export, {said.count(' → ')} commits told"
            yield Finding(code == 0, text if code == 0 else said)

    def run_topology(self) -> Iterator[Finding]:
        """Run the topology to the end, through all kills."""
        step = max(self.count // (self.kills + 2), 50)
        settings = [
            f"kafka.bootstrap={self.kafka.bootstrap}", f"kafka.group=formats-demo-{uuid.uuid4().hex[:8]}",
            f"kafka.dead_letter_topic={DEAD_LETTERS}", "kafka.emit=chunk", "kafka.retries_max=0",
            f"parse.registry={self.registry.url}", f"parquet.directory={self.directory}",
            f"parquet.flush_rows={max(min(step // 4, 20_000), 50)}",
        ]  # fmt: skip
        return self.run_killed(TARGET, settings, self.written, "rows are in the directory", step)

    def written(self) -> int:
        """Return the number of committed rows, from the log alone, since it is polled."""
        log = CommitLog(self.directory)
        log.refresh()
        return log.rows

    def export(self, form: str, *more: str) -> list[str]:
        """Return the command that exports the directory."""
        return [sys.executable, "-m", "downspout", "export", str(self.directory), f"--{form}", *more]

    # --- 3 ---

    def audit(self) -> Iterator[Finding]:
        """Yield the findings of the audit and on the dead letters."""
        yield audited(self.directory, "--dead-letters", DEAD_LETTERS)
        command = [sys.executable, "-m", "downspout", "dlq", "ls", DEAD_LETTERS, "--exception", "distance", "--json"]
        command += ["--bootstrap", self.kafka.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            yield Finding(False, done.stderr)
            return
        found = json.loads(done.stdout)
        yield Finding(
            found["letters"] == ODD, f"{found['letters']} dead letters, such as {found['groups'][0]['message']}"
        )

    # --- 4 ---

    def read(self, right: Sums) -> Iterator[Finding]:
        """Yield each reader's result."""
        for name, reader in readers(self.directory).items():
            if "Spark" in name and not self.with_spark:
                continue
            with self.screen.busy(f"reading: {name}"):
                found = reader()
            sums = f"{found[0]:,} flights; sums equal the package's"
            yield Finding(found == right, f"{name}: {sums if found == right else f'{found}, not {right}'}")


FORMS = ("delta", "iceberg")


class Writer:
    """Writes documents with a schema, like producers with a registry."""

    def __init__(self, registry: SchemaRegistry, fields: Mapping[str, Any]) -> None:
        import fastavro

        made = {"type": "record", "name": "Flight", "fields": [{"name": n, "type": kind} for n, kind in fields.items()]}
        self.number = registry.register(f"{TOPIC}-value", json.dumps(made))
        self._schema, self._write = fastavro.parse_schema(made), fastavro.schemaless_writer

    def __call__(self, row: Mapping[str, Any]) -> bytes:
        """Return the value of a record."""
        out = io.BytesIO()
        self._write(out, self._schema, row)
        return b"\0" + self.number.to_bytes(4, "big") + out.getvalue()


class Killed(threading.Thread):
    """An export that follows the directory, killed after some commit, and started again."""

    def __init__(self, command: list[str], log: Path, kills: int, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._command, self._log, self._most, self._ended = (
            [*command, "--follow", "--every", "100ms"],
            log,
            kills,
            ended,
        )
        self.kills = 0

    def run(self) -> None:
        """Kill it repeatedly while the topology runs."""
        while not self._ended.is_set():
            with self._log.open("ab") as log:
                process = subprocess.Popen(self._command, stdout=log, stderr=log)
            try:
                if self.kills < self._most:
                    self._wait_for_a_commit(process)
                    self._ended.wait(random.uniform(0, KILL_WITHIN_S))
                else:
                    self._ended.wait()
            finally:
                process.kill()
                self.kills += process.wait() < 0 and self.kills < self._most

    def _wait_for_a_commit(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until it has said something, or has ended: at first there is no directory."""
        size = self._log.stat().st_size
        while process.poll() is None and self._log.stat().st_size == size and not self._ended.wait(0.02):
            pass


def documents(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the flights as documents of the later schema."""
    frame = frame[list(LATER)].astype({"dep_delay": "Int64", "arr_delay": "Int64"}).astype(object)
    columns = {name: frame[name].where(frame[name].notna(), None).tolist() for name in LATER}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def wanted(frame: pd.DataFrame) -> Sums:
    """Return each reader's expected result."""
    named = int(frame["tailnum"][len(frame) // 2 :].notna().sum())
    return len(frame), len(frame), int(frame["distance"].sum()), named


def readers(directory: Path) -> dict[str, Callable[[], Sums]]:
    """Return all readers, by name."""
    os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")  # else it asks for a package that it does not need
    import duckdb
    import polars as pl
    from deltalake import DeltaTable

    from downspout.sink.snapshot import read_table
    from downspout.tables.iceberg import open_catalog

    def delta() -> DeltaTable:
        return DeltaTable(f"{directory}.delta")

    def iceberg() -> Any:
        return open_catalog(None, f"{directory}.iceberg").load_table(f"downspout.{directory.name}")

    def by_pandas(frame: pd.DataFrame) -> Sums:
        records = frame["_partition"].astype("int64") * 1_000_000_000 + frame["_offset"]
        return len(frame), records.nunique(), int(frame["distance"].sum()), int(frame["tailnum"].notna().sum())

    def by_polars(frame: pl.LazyFrame) -> Sums:
        return _plain(pl.SQLContext(flights=frame).execute(SQL).collect().row(0))

    def by_duckdb(table: Any) -> Sums:
        with duckdb.connect() as connection:
            connection.register("flights", table)
            return _plain(connection.execute(SQL).fetchone())

    return {
        "Parquet, pandas": lambda: by_pandas(read_table(directory, origins=True).to_pandas()),
        "Delta, pandas": lambda: by_pandas(delta().to_pandas()),
        "Delta, Polars": lambda: by_polars(pl.scan_delta(f"{directory}.delta")),
        "Delta, DuckDB": lambda: by_duckdb(delta().to_pyarrow_dataset()),
        "Delta, PySpark": lambda: by_spark(f"{directory}.delta"),
        "Iceberg, pyiceberg": lambda: by_pandas(iceberg().scan().to_pandas()),
        "Iceberg, Polars": lambda: by_polars(pl.scan_iceberg(iceberg())),
        "Iceberg, DuckDB": lambda: by_duckdb(iceberg().scan().to_arrow()),
    }


def by_spark(table: str) -> Sums:
    """Read a Delta table with Spark."""
    from downspout.spark.session import spark_session

    config = {
        "spark.jars": ",".join(map(str, jars.resolve("spark-delta"))),
        "spark.databricks.delta.snapshotPartitions": "2",  # most of the default 50 would be empty
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    with spark_session("formats-demo", config=config) as spark:
        spark.read.format("delta").load(table).createOrReplaceTempView("flights")
        return _plain(spark.sql(SQL).collect()[0])


def _plain(row: Any) -> Sums:
    rows, records, distance, named = (int(value) for value in row)
    return rows, records, distance, named

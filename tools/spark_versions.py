"""``make spark-versions``: the source and a topology on every PySpark that is supported, each in a fresh environment.

Each version gets a virtual environment with the wheel of this checkout, whose own Python then reads a topic of a real
broker, in batch and as a stream, and runs a topology with a stateful bolt; the rows are compared here. One version that
is too old must be refused by name. The outcome is printed as a table.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from downspout.broker import EmbeddedKafka
from downspout.kafka import KafkaCluster
from downspout.system.java import for_spark, java

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("4.2.0", "4.2.1", "4.3.0")
TOO_OLD = "4.1.4"
RECORDS = 1_000

HEAD = """| PySpark | Python | Java | batch | stream | topology |
| --- | --- | --- | --- | --- | --- |
"""
TOPOLOGY = """\
from streamparse import Grouping, Topology

from counting import CountBolt
from downspout.bolts.parquet import ParquetBolt
from downspout.spouts.kafka import KafkaSpout


class Versions(Topology):
    lines = KafkaSpout.spec(topics=["{topic}"], fields=["origin", "value"], bootstrap="{bootstrap}")
    count = CountBolt.spec(inputs={{lines: Grouping.fields("value")}}, par=2)
    values = ParquetBolt.spec(inputs=[lines], directory="output/values", schema={{"value": "string!"}})
    counts = ParquetBolt.spec(
        inputs=[count], directory="output/counts", schema={{"value": "string!", "seen": "int64!"}}
    )
"""
COUNTING = """\
from downspout.component import Bolt


class CountBolt(Bolt):
    outputs = ["origin", "value", "seen"]

    def initialize(self, conf, ctx):
        self.seen = {}

    def process(self, tup):
        origin, value = tup.values
        self.seen[value] = self.seen.get(value, 0) + 1
        self.emit([origin, value, self.seen[value]])
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with one PySpark.

    Attributes:
        version: PySpark's.
        python: its interpreter.
    """

    version: str
    python: Path

    def run(self, words: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment, without ours."""
        bare = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
        }
        bare["PYSPARK_PYTHON"] = str(self.python)  # otherwise workers are the python3 on the PATH
        for_spark(bare)
        return subprocess.run(
            [self.python, *words], cwd=folder, env=bare, capture_output=True, text=True, timeout=900, check=False
        )


def made(version: str, place: Path, wheel: Path) -> Environment:
    """Make the environment, or bring the one up to date that is there."""
    python = place / version / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", place / version], check=True)
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pinned = [line.rstrip(" \\") for line in lines if line[:1].isalpha()]
    others = place / "versions.txt"
    others.write_text(
        "\n".join(line for line in pinned if not line.startswith(("pyspark==", "py4j=="))), encoding="utf-8"
    )
    extra = "" if version == TOO_OLD else "[spark]"  # the extra would not have it
    wanted = [f"downspout{extra} @ {wheel.as_uri()}", f"pyspark=={version}", "pandas"]
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", others, *wanted]
    subprocess.run(pip, check=True)
    subprocess.run([*pip[:6], "--force-reinstall", "--no-deps", wheel], check=True)
    return Environment(version, python)


def source(environment: Environment, bootstrap: str, topic: str, folder: Path) -> dict[str, Any]:
    """Read the topic by the source; return what the driver reported, or the error."""
    driver = shutil.copy(ROOT / "tests" / "spark" / "cluster_driver.py", folder)
    done = environment.run([driver, bootstrap, topic, str(folder)], folder)
    report = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(json.loads(report[-1])) if report else {"error": done.stderr.strip().splitlines()[-1]}


def topology(environment: Environment, bootstrap: str, topic: str, folder: Path) -> str:
    """Run the topology and compare its rows; return ``ok`` or what went wrong."""
    place = folder / "topologies"
    place.mkdir()
    (place / "counting.py").write_text(COUNTING, encoding="utf-8")
    (place / "versions.py").write_text(TOPOLOGY.format(topic=topic, bootstrap=bootstrap), encoding="utf-8")
    words = [
        "-m",
        "downspout",
        "spark",
        "run",
        "topologies/versions.py",
        "--until",
        "end",
        "--records-per-batch",
        "300",
    ]
    done = environment.run(words, folder)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    values = Counter(str(number % 10) for number in range(RECORDS))
    wanted = Counter((value, seen) for value, count in values.items() for seen in range(1, count + 1))
    table = ds.dataset(folder / "output" / "counts", format="parquet", partitioning=None).to_table()
    counted = Counter(zip(table["value"].to_pylist(), table["seen"].to_pylist(), strict=True))
    found = (
        ds.dataset(folder / "output" / "values", format="parquet", partitioning=None).to_table()["value"].to_pylist()
    )
    return "ok" if counted == wanted and Counter(found) == values else "other rows"


def outcome(environment: Environment, bootstrap: str, topic: str) -> list[str]:
    """Return one row of the table: batch, stream, topology."""
    rows = sorted([number % 2, number // 2, str(number % 10)] for number in range(RECORDS))
    with tempfile.TemporaryDirectory(prefix="downspout-versions-") as name:
        report = source(environment, bootstrap, topic, Path(name))
        if "error" in report:
            return [str(report["error"])] * 3
        read = ["ok" if report[kind] == rows else "other rows" for kind in ("batch", "stream")]
        return [*read, topology(environment, bootstrap, topic, Path(name))]


def publish(bootstrap: str, topic: str) -> None:
    """Write the records."""
    cluster = KafkaCluster(bootstrap)
    cluster.ensure_topic(topic, 2)
    producer = cluster.producer()
    for number in range(RECORDS):
        producer.send(topic, key=None, value=b"%d" % (number % 10), partition=number % 2)
    producer.flush()
    producer.close()


def java_version() -> str:
    """Return the feature version of the Java that Spark gets."""
    said = subprocess.run([java(), "-version"], capture_output=True, text=True, check=True).stderr
    return said.split('"')[1].split(".")[0]


def main(place: Path) -> int:
    """Try every version; write the page; return 0 if all did what they should."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", place / "wheel", ROOT]
    subprocess.run(build, check=True, capture_output=True)
    wheel = next((place / "wheel").glob("*.whl"))
    with EmbeddedKafka(place / "kafka") as kafka:
        publish(kafka.bootstrap, "versions")
        found = {}
        for version in (*VERSIONS, TOO_OLD):
            found[version] = outcome(made(version, place, wheel), kafka.bootstrap, "versions")
            print(version, *found[version], flush=True)
    print(table(found))
    return 0 if is_refused(found) and all(set(found[version]) == {"ok"} for version in VERSIONS) else 1


def is_refused(found: dict[str, list[str]]) -> bool:
    """Return whether the version that is too old was refused by name, each time."""
    return all(said.startswith(f"PySpark {TOO_OLD} is too old") for said in found[TOO_OLD])


def table(found: dict[str, list[str]]) -> str:
    """Return what came of each version as a Markdown table."""
    facts = f"{sys.version_info[0]}.{sys.version_info[1]} | {java_version()}"
    lines = [f"| {version} | {facts} | {' | '.join(found[version])} |" for version in VERSIONS]
    lines.append(f"| {TOO_OLD} | {facts} | " + ("refused | refused | refused |" if is_refused(found) else "??? | | |"))
    return HEAD + "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make the environments here, and leave them")
    kept = parser.parse_args().keep
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(kept / "kafka", ignore_errors=True)
        shutil.rmtree(kept / "wheel", ignore_errors=True)
        sys.exit(main(kept.absolute()))
    with tempfile.TemporaryDirectory(prefix="downspout-versions-") as temporary:
        sys.exit(main(Path(temporary)))

"""The topologies of ``bench/storm.py`` as definitions for Flux.

All have one spout, one bolt, one acker and one worker, and give each tuple an id. ``topology.max.spout.pending`` counts
records for all of them: a tuple is a record, but in chunk mode, where our spout counts the records in its chunks.
"""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench import storm_parts
from bench.flights import PARTITIONS
from bench.harness import BenchError
from downspout.storm import node_files
from downspout.storm.node import StormNode
from downspout.system import jars
from downspout.system.java import java as find_java
from downspout.wire import CHUNKS

TOPIC = "bench-storm"
PENDING = 5_000
TICK_S = 1
"""Interval at which the Python bolts note their progress."""
SPOUT = "org.apache.storm.kafka.spout."
CHUNKED = {"kafka.emit": "chunk", CHUNKS: {"spout": ["default"]}}
"""Flux knows nothing about what a class of a topology would say of itself."""

Component = dict[str, Any]


class Parts(NamedTuple):
    """A peer's spout and bolt: classes of ``storm_parts``; ``ours``, ours in ``chunks``, or ``java``."""

    spout: str
    bolt: str


def topology(parts: Parts, name: str, bootstrap: str, notes: Path) -> Component:
    """Return the Flux definition of a peer's topology."""
    more, spout = java_spout(bootstrap, name) if parts.spout == "java" else python_spout(parts.spout)
    still_more, bolt = java_bolt() if parts.bolt == "java" else python_bolt(parts.bolt)
    return {
        "name": name,
        "config": {
            "topology.workers": 1,
            "topology.acker.executors": 1,
            "topology.eventlogger.executors": 0,
            "topology.max.spout.pending": PENDING,
            "topology.message.timeout.secs": 120,
            **({} if parts.bolt == "java" else {"topology.tick.tuple.freq.secs": TICK_S}),
            "kafka.bootstrap": bootstrap,
            "kafka.topics": [TOPIC],
            "kafka.group": name,
            "kafka.fields": storm_parts.FIELDS,
            "kafka.commit_period_ms": 1_000,
            **(CHUNKED if parts.spout == "chunks" else {}),
            "bench.partitions": PARTITIONS,
            "bench.notes": str(notes),
        },
        "components": more + still_more,
        "spouts": [spout],
        "bolts": [bolt],
        "streams": [{"from": "spout", "to": "bolt", "grouping": {"type": "SHUFFLE"}}],
    }


def python_spout(name: str) -> tuple[list[Component], Component]:
    """Return a Python spout for Flux, without components that it needs."""
    path = "spouts.kafka.KafkaSpout" if name in ("ours", "chunks") else f"bench.storm_parts.{name}"
    return [], shell("spout", path, storm_parts.FIELDS)


def python_bolt(name: str) -> tuple[list[Component], Component]:
    """Return a Python bolt for Flux, without components that it needs."""
    return [], shell("bolt", f"bench.storm_parts.{name}", storm_parts.StockBolt.outputs)


def shell(kind: str, path: str, outputs: list[str]) -> Component:
    """Return a component of Flux that is a Python class."""
    return {
        "id": kind,
        "className": f"org.apache.storm.flux.wrappers.{kind}s.FluxShell{kind.title()}",
        "constructorArgs": [["streamparse_run", path], outputs],
        "parallelism": 1,
    }


def java_spout(bootstrap: str, group: str) -> tuple[list[Component], Component]:
    """Return Storm's own KafkaSpout for Flux, after the components that it needs."""
    text = "org.apache.kafka.common.serialization.StringDeserializer"
    builder = {
        "id": "builder",
        "className": f"{SPOUT}KafkaSpoutConfig$Builder",
        "constructorArgs": [bootstrap, [TOPIC]],
        "properties": [{"name": "firstPollOffsetStrategy", "value": "EARLIEST"}],
        "configMethods": [
            {"name": "setProp", "args": [{"group.id": group, "key.deserializer": text, "value.deserializer": text}]},
            {"name": "setOffsetCommitPeriodMs", "args": [1_000]},
        ],
    }
    made = {"id": "config", "className": f"{SPOUT}KafkaSpoutConfig", "constructorArgs": [{"ref": "builder"}]}
    spout = {"id": "spout", "className": f"{SPOUT}KafkaSpout", "constructorArgs": [{"ref": "config"}]}
    return [builder, made], spout | {"parallelism": 1}


def java_bolt() -> tuple[list[Component], Component]:
    """Return a bolt of Storm's that emits each tuple unchanged to no reader, and acks it."""
    fields = {"id": "fields", "className": "org.apache.storm.tuple.Fields", "constructorArgs": [storm_parts.FIELDS]}
    bolt = {"id": "bolt", "className": "org.apache.storm.testing.IdentityBolt", "constructorArgs": [{"ref": "fields"}]}
    return [fields], bolt | {"parallelism": 1}


# --- submitting ---


def make_jar(path: Path) -> Path:
    """Make the jar for all peers: Storm's Kafka client, and a folder in which components start."""
    seen: set[str] = set()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("resources/README", "Components start here.\n")
        for source in jars.resolve("storm-kafka"):
            with zipfile.ZipFile(source) as parts:
                for name in parts.namelist():
                    if name not in seen and not name.startswith(("META-INF/", "resources/")) and name[-1] != "/":
                        seen.add(name)
                        archive.writestr(name, parts.read(name))
    return path


def submit(node: StormNode, jar: Path, definition: Mapping[str, Any]) -> None:
    """Submit with Flux, like ``storm jar JAR org.apache.storm.flux.Flux --remote FILE``."""
    file = jar.with_name(f"{definition['name']}.yaml")
    file.write_text(json.dumps(definition), encoding="utf-8")  # JSON is YAML, too
    home, library = node.directory / "home", jars.resolve("storm")[0].parent
    command = [str(find_java()), *node_files.JVM_FLAGS, f"-Dstorm.home={home}", f"-Dstorm.jar={jar}"]
    command += [f"-Dstorm.log.dir={node.directory / 'logs'}", "-Dlogfile.name=client.log", "-Dstorm.conf.file="]
    command += [f"-Dlog4j.configurationFile={home / 'log4j2' / 'cluster.xml'}"]
    command += ["-cp", os.pathsep.join([f"{library}/*", str(jar), str(home / "conf")])]
    command += ["org.apache.storm.flux.Flux", "--remote", "--no-splash", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"Flux failed with exit code {done.returncode}:\n{done.stdout}\n{done.stderr}")

"""The table of contenders. To add one, write its program and its row.

Braces in a command are filled in for each run: ``{python}`` of its environment, ``{bootstrap}``, ``{topic}``,
``{group}``, ``{out}`` (a directory that does not exist yet), ``{records}``, ``{jars}`` of Spark's connector.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.environments import UnavailableError, python_of, version_of
from bench.flights import SCHEMA
from bench.harness import ROOT, say
from downspout.errors import DownspoutError
from downspout.system import jars

PEERS = ROOT / "bench" / "peers"


@dataclass(frozen=True)
class Contender:
    """One program that writes the topic to Parquet.

    Attributes:
        key: its name on the command line.
        name: its name in tables.
        command: its command line.
        environment: the peer whose environment it uses; empty: ours.
        group: whether it commits to its Kafka consumer group, which is then checked.
        note: its behaviour on failures and restarts.
        settings: ours only: the settings that distinguish it.
    """

    key: str
    name: str
    command: tuple[str, ...]
    environment: str = ""
    group: bool = True
    note: str = ""
    settings: tuple[str, ...] = ()

    @property
    def ours(self) -> bool:
        """Whether it is Downspout."""
        return not self.environment

    def line(self, bootstrap: str, topic: str, group: str, out: Path, records: int) -> list[str]:
        """Return the command line of one run.

        Raises:
            UnavailableError: it cannot be installed here.
        """
        return filled(
            self.command, python=python_of(self.environment) if self.environment else sys.executable,
            bootstrap=bootstrap, topic=topic, group=group, out=out, records=records,
            jars=connector_jars() if "{jars}" in self.command else "",
        )  # fmt: skip


def filled(command: Sequence[str], **values: object) -> list[str]:
    """Return a command with its braces filled in."""
    return [part.format(**values) for part in command]


def topology(
    *settings: str, file: Path = ROOT / "bench" / "flights_topology.py", on: Sequence[str] = ("run",)
) -> tuple[str, ...]:
    """Return the command that runs a topology with some settings, ``on`` an engine: ``("spark", "run")``."""
    given = ("kafka.bootstrap={bootstrap}", "kafka.topics={topic}", "kafka.group={group}", "parquet.directory={out}")
    options = [part for setting in (*given, *settings) for part in ("--set", setting)]
    return ("{python}", "-m", "downspout", *on, str(file), "--quiet", *options)


def downspout(key: str, name: str, *settings: str, note: str, options: Sequence[str] = ()) -> Contender:
    """Return a Downspout contender: the topology with some settings, and options of ``downspout run``."""
    command = (*topology(*settings), "--until", "end", *options)
    return Contender(key, f"Downspout, {name}", command, note=note, settings=settings)


def peer(key: str, name: str, program: str, package: str, *more: str, group: bool = True, note: str) -> Contender:
    """Return a contender that is a program in ``bench/peers``; its name includes the version of ``package``."""
    command = ("{python}", str(PEERS / f"{program}.py"), "{bootstrap}", "{topic}", "{group}", "{out}", "{records}")
    return Contender(key, name.format(version_of(program, package)), (*command, *more), program, group, note)


_ONCE = "exactly once in the files; every tuple acked, retries, dead letters"
_AGAIN = "at least once: stopped between file and commit, it writes rows again; stops at the first bad record"


def types(columns: Mapping[str, str]) -> str:
    """Return the setting that declares the columns of a parser."""
    return "parse.types=" + ",".join(f"{field}:{kind}" for field, kind in columns.items())


TYPES = types(SCHEMA)

DOWNSPOUT = (
    downspout("record", "record mode", "kafka.emit=record", note=_ONCE),
    downspout("chunk", "chunk mode", "kafka.emit=chunk", TYPES, note=_ONCE),
)
"""Downspout in one process."""

WORKERS = downspout("workers", "chunk mode, two processes", "kafka.emit=chunk", TYPES, note=_ONCE,
                    options=("--workers", "2"))  # fmt: skip
"""Downspout on two cores, for its wall time, not for its CPU time."""

LOOP = peer("loop", "loop: kafka-python {}, orjson, PyArrow", "bare_loop", "kafka-python", "orjson", note=_AGAIN)
"""The reference."""

RIVALS = (
    LOOP,
    peer("loop-arrow", "loop: kafka-python {}, Arrow's JSON reader", "bare_loop", "kafka-python", "arrow", note=_AGAIN),
    peer("confluent", "loop: confluent-kafka {}, Arrow's JSON reader", "confluent_loop", "confluent-kafka", "arrow",
         note=_AGAIN),
    peer("confluent-orjson", "loop: confluent-kafka {}, orjson, PyArrow", "confluent_loop", "confluent-kafka",
         "orjson", note=_AGAIN),
    peer("confluent-polars", "loop: confluent-kafka {}, Polars' NDJSON reader", "confluent_loop", "confluent-kafka",
         "polars", note=_AGAIN + "; a number of another type becomes null or another number, unsaid"),
    peer("bytewax", "Bytewax {}, Arrow's JSON reader", "bytewax_flow", "bytewax", group=False,
         note="at least once: snapshots every 10 s in its own store, rows written since come again; "
         "stops at the first bad record"),
    peer("quix", "Quix Streams {}", "quix", "quixstreams",
         note="at least once: a checkpoint every 100,000 messages, rows written since come again; "
         "a bad record stops it or, by a callback, is skipped"),
    peer("faust", "Faust-streaming {}", "faust_app", "faust-streaming",
         note="at least once: commits by time what agents acknowledged; stops at the first bad record"),
    peer("spark-batch", "Spark {}, JVM connector, batch, local[2]", "spark_connector", "pyspark", "batch", "{jars}",
         group=False, note="keeps no progress: a second run reads everything again; no fsync; FAILFAST on bad records; "
         "two cores at once"),
    peer("spark-stream", "Spark {}, JVM connector, availableNow, local[2]", "spark_connector", "pyspark", "stream",
         "{jars}", group=False, note="exactly once by its checkpoint and the sink's log; no fsync of data files; "
         "FAILFAST on bad records; two cores at once"),
)  # fmt: skip
"""The others."""

ALL = (*DOWNSPOUT, WORKERS, *RIVALS)


def chosen(keys: Sequence[str]) -> list[Contender]:
    """Return the contenders with these keys, or all.

    Raises:
        ValueError: a key is unknown.
    """
    known = {contender.key: contender for contender in ALL}
    if unknown := [key for key in keys if key not in known]:
        raise ValueError(f"no contender is called {unknown[0]!r}: there are {', '.join(known)}")
    return [known[key] for key in keys or known]


def available(contenders: Sequence[Contender]) -> tuple[list[Contender], list[str]]:
    """Install the contenders; return those available, and a line with the reason for each other."""
    there, missing = [], []
    for contender in contenders:
        try:
            contender.line("", "", "", Path(), 0)
        except UnavailableError as error:
            missing.append(f"{contender.name} is left out: {error}")
            say(missing[-1])
        else:
            there.append(contender)
    return there, missing


def connector_jars() -> str:
    """Return the jars of Spark's Kafka connector, which PySpark lacks."""
    needed = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
    try:
        return ",".join(str(path) for path in jars.resolve("spark-kafka") if path.name.startswith(needed))
    except DownspoutError as error:
        raise UnavailableError(str(error)) from None

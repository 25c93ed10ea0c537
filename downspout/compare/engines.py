"""The engines of a comparison: whether one can run here, and how it runs a job.

Each runs in its own process, isolated from the others' JVMs, signal handlers and settings, and can be ended. Its state
is in a folder of the job.

**On Storm**, stock streamparse submits the topology to the local node under another name, and it is killed at the end.
Options of `sparse submit -o` are weaker than settings of components, such as a sink's directory. So the submitted
topology is a generated one in a generated project: the user's, with our settings in its components (:func:`isolated`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from downspout.clock import SYSTEM_CLOCK
from downspout.compare.outputs import Frozen, Job, KeptState, Sink, WrittenTopic, committed_in, read_finished
from downspout.engine.load import load_class
from downspout.errors import ConfigError, DownspoutError, StormError
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import TopicPartition
from downspout.settings.secrets import resolve_client
from downspout.settings.table import SCOPES, parse_scope
from downspout.spark.source_offsets import to_json
from downspout.spout.tuples import mode_of
from downspout.storm import nimbus, program, stats
from downspout.storm.node import StormNode, default_directory

Compared = Sink | WrittenTopic | KeptState
END_S_MAX = 20.0  # Longest wait after SIGTERM
LINES_MAX = 15


class EngineError(DownspoutError):
    """An engine started but did not finish."""

    exit_code = 2


class ComparedEngine(ABC):
    """One way to run a job."""

    name: ClassVar[str]
    emit: ClassVar[str] = ""  # ``kafka.emit`` of the spouts; empty: the topology's setting

    def __init__(self, job: Job) -> None:
        self.job = job

    def missing(self) -> str:
        """Return why it cannot run here; empty if it can."""
        for spout in self.job.spouts if self.emit else ():
            if spout.emitters:
                return f"{spout.name}: batches are emitted record by record"
            settings = parse_scope({**self.job.confs[spout.name], "kafka.emit": self.emit}, "kafka")
            try:
                mode_of(settings).check(settings)
            except ConfigError as error:
                return f"{spout.name}: {error.message}"
        return ""

    @abstractmethod
    def run(self) -> None:
        """Run the job to its end. Raises EngineError: it did not finish."""

    def table(self, sink: Compared) -> pa.Table:
        """Return the finished table of a sink."""
        if isinstance(sink, KeptState):
            return sink.read(self.job.store(self.name))
        if isinstance(sink, WrittenTopic):
            return sink.read(self.job.topic(self.name, sink.name))
        return sink.read(self.job.output(self.name, sink.name))

    def makes(self, sink: Compared) -> bool:
        """Return whether it makes this table."""
        return True

    def groups(self, spout: Frozen) -> list[str]:
        """Return the consumer groups that a run leaves behind."""
        return [self.job.group(self.name, spout)]

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return self.job.directory / self.name

    def doing(self) -> str:
        """Describe a run's progress by the last line of its log."""
        try:
            lines = last_lines(self.folder / "log").splitlines()
        except OSError:
            lines = []
        return f"waiting; its last line: {lines[-1].strip()}" if lines else "waiting; it has written nothing yet"

    def _run_downspout(self, *command: str, quiet: bool = True) -> None:
        """Run a Downspout command on the topology in the user's folder, but with separate state."""
        job = self.job
        chosen = ["--topology", job.topology] if job.topology else []
        emit = [f"--set={spout.name}:kafka.emit={self.emit}" for spout in job.spouts if self.emit]
        run_program(
            [sys.executable, "-m", "downspout", *command, job.target, *chosen, "--until", "end",
             *(["--quiet"] if quiet else []), *job.options(self.name), *emit],
            self.folder,
        )  # fmt: skip


class Local(ComparedEngine):
    """The local engine: ``downspout run``."""

    name = "local"

    def run(self) -> None:
        """Run to the end of the ranges."""
        self._run_downspout("run")


class Spark(ComparedEngine):
    """The topology on Spark: ``downspout spark run``."""

    name = "spark"

    def missing(self) -> str:
        """Check that PySpark is installed."""
        return _without_pyspark() or super().missing()

    def run(self) -> None:
        """Run the query to the end of the ranges."""
        self._run_downspout("spark", "run", "--checkpoint", str(self.folder / "checkpoint"), quiet=False)

    def groups(self, spout: Frozen) -> list[str]:
        """Return the group, and the one for lag tools."""
        return [*super().groups(spout), *(f"{group}-spark" for group in super().groups(spout))]


class LocalRecords(Local):
    """The local engine in record mode."""

    name = "local-record"
    emit = "record"


class LocalChunks(Local):
    """The local engine in chunk mode."""

    name = "local-chunk"
    emit = "chunk"


class SparkRecords(Spark):
    """The topology on Spark in record mode."""

    name = "spark-record"
    emit = "record"


class SparkChunks(Spark):
    """The topology on Spark in chunk mode."""

    name = "spark-chunk"
    emit = "chunk"


class Native(ComparedEngine):
    """The native Spark version: a module beside the topology, ``<topology>_spark``, with ``native(spark, records)``."""

    name = "native"

    def missing(self) -> str:
        """Check that PySpark is installed and the module exists."""
        target, is_there = native_version_of(self.job.target)
        return _without_pyspark() or ("" if is_there else f"there is no {target}")

    def run(self) -> None:
        """Run it on one batch with all ranges, and write its tables."""
        self.folder.mkdir(parents=True, exist_ok=True)
        plan = {
            "target": native_version_of(self.job.target)[0],
            "spouts": {spout.name: source_of(spout) for spout in self.job.spouts},
            "tables": {sink.name: str(self.job.output(self.name, sink.name)) for sink in self.job.sinks},
        }
        file = self.folder / "plan.json"
        file.write_text(json.dumps(plan), encoding="utf-8")
        run_program([sys.executable, "-m", "downspout.compare.native", str(file)], self.folder)

    def makes(self, sink: Compared) -> bool:
        """Return whether it is a table of files: this engine does not write to Kafka, and has no state."""
        return isinstance(sink, Sink)

    def table(self, sink: Compared) -> pa.Table:
        """Return the table unchanged: the native version itself must produce the sink's columns."""
        return read_finished(self.job.output(self.name, sink.name))

    def groups(self, spout: Frozen) -> list[str]:
        """Return none: nothing is committed."""
        return []


def native_version_of(target: str) -> tuple[str, bool]:
    """Return the file or module of a topology's native Spark version, and whether it exists.

    >>> native_version_of("shop/orders.py"), native_version_of("shop.orders:Orders")
    (('shop/orders_spark.py', False), ('shop.orders_spark', False))
    """

    module, colon, _ = target.partition(":")
    if colon and not Path(target).exists():
        name = f"{module}_spark"
        try:
            found = importlib.util.find_spec(name)
        except ImportError:
            found = None
        return name, found is not None
    path = Path(target)
    beside = path.with_name(f"{path.stem}_spark.py")
    return str(beside), beside.is_file()


def _without_pyspark() -> str:
    return "" if importlib.util.find_spec("pyspark") else "PySpark is not installed (pip install 'downspout[spark]')"


def source_of(spout: Frozen) -> dict[str, str]:
    """Return the options with which our Spark source reads the ranges of a spout."""
    starts = to_json({tp: start for tp, (start, _) in spout.ranges.items()})
    ends = to_json({tp: end for tp, (_, end) in spout.ranges.items()})
    return {
        "kafka.bootstrap.servers": spout.bootstrap,
        "assign": json.dumps({topic: sorted(map(int, parts)) for topic, parts in starts.items()}),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        **{f"kafka.{name.replace('_', '.')}": str(value) for name, value in spout.client.items()},
    }


def run_program(
    command: Sequence[str], folder: Path, *, cwd: Path | None = None, environ: Mapping[str, str] | None = None
) -> None:
    """Run a program to its end, with its output in ``folder/log`` and its state in ``folder/home``."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    # The child must find this library, even in an editable install or a checkout.
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables: dict[str, Any] = {**os.environ, "DOWNSPOUT_HOME": str(folder / "home"), "PYTHONPATH": path}
    with log.open("ab") as output:
        # In its own session: Ctrl-C reaches only this process, which ends it and its children.
        process = subprocess.Popen(
            command, cwd=cwd, env={**variables, **(environ or {})}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait()
        finally:
            _end(process)
    if code:
        raise EngineError(f"exit code {code}; its last lines:\n{last_lines(log)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its session, if it still runs."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            break
        os.killpg(process.pid, number)
        try:
            process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            continue


def last_lines(log: Path) -> str:
    """Return the end of a log, indented."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES_MAX:]
    return "\n".join(f"    {line}" for line in lines)


# --- Storm ---

POLL_S = 1.0
STALLED_S_MAX = 180.0  # A run is stopped after this time without a commit
GONE_S_MAX = 60.0

OURS = SCOPES - {"run"}

TOPOLOGY = """\
from downspout.compare.engines import isolated

Isolated = isolated({target!r}, {topology!r}, {root!r}, {settings!r})
"""


class Storm(ComparedEngine):
    """The topology on Storm: ``sparse submit``, and ``sparse kill`` once all is committed."""

    name = "storm"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._node = StormNode(default_directory())
        self._submitted = f"compare-{job.graph.name}-{job.id}"

    def missing(self) -> str:
        """Check that our Storm runs, and that the folder is a streamparse project."""
        status = self._node.steady_status()
        if status.state != "running":
            return f"Storm is {status.condition} (`downspout storm start`)"
        return "" if Path("config.json").is_file() else "the folder has no config.json, which `sparse submit` reads"

    def run(self) -> None:
        """Submit the topology, wait until the ranges are committed, and kill it."""
        project = self._project()
        environ = {**os.environ, **program.environment(self._node)}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), environ.get("PYTHONPATH")]))
        sparse = str(Path(sys.executable).with_name("sparse"))
        with self._killed():
            run_program(
                [sparse, "submit", "-n", "isolated", "-N", self._submitted], self.folder, cwd=project, environ=environ
            )
            self._wait()

    def _project(self) -> Path:
        """Generate a project like the user's, with another topology."""
        project = self.folder / "project"
        (project / "topologies").mkdir(parents=True)
        for name in ("src", "project.clj"):
            if Path(name).exists():
                (project / name).symlink_to(Path(name).absolute())
        spec = json.loads(Path("config.json").read_text(encoding="utf-8"))
        (project / "config.json").write_text(json.dumps({**spec, "topology_specs": "topologies/"}), encoding="utf-8")
        job = self.job
        text = TOPOLOGY.format(
            target=job.target, topology=job.topology, root=str(Path.cwd()), settings=storm_settings(job, self.name)
        )
        (project / "topologies" / "isolated.py").write_text(text, encoding="utf-8")
        return project

    def _wait(self) -> None:
        left, moved_at = self._left(), SYSTEM_CLOCK.monotonic()
        while left:
            SYSTEM_CLOCK.sleep(POLL_S)
            now_left = self._left()
            if now_left != left:
                left, moved_at = now_left, SYSTEM_CLOCK.monotonic()
            elif SYSTEM_CLOCK.monotonic() - moved_at > STALLED_S_MAX:
                figures = stats.collect(*self._node.address, self._submitted, with_lag=False)
                raise EngineError(f"{left:,} offsets are not committed, and nothing moves:\n{stats.render(figures)}")

    def _left(self) -> int:
        """Return the number of offsets not committed yet."""
        left = 0
        for spout in self.job.spouts:
            if spout.emitters:
                done = committed_in(self.job.store(self.name), spout.batch_id, spout.ranges)
                left += sum(max(0, end - max(start, done.get(tp, start))) for tp, (start, end) in spout.ranges.items())
                continue
            client = resolve_client(spout.client)
            cluster = cluster_for(spout.bootstrap, client)
            with contextlib.closing(
                cluster.consumer(group=self.job.group(self.name, spout), client=client)
            ) as consumer:
                commits = consumer.committed(list(spout.ranges))
            for tp, (start, end) in spout.ranges.items():
                left += max(0, end - _committed(commits, tp, start))
        return left

    @contextlib.contextmanager
    def _killed(self) -> Iterator[None]:
        """Kill the topology at the end, if it was submitted, and wait until it is gone."""
        try:
            yield
        finally:
            address = self._node.address
            if self._submitted in stats.names(*address):
                nimbus.kill(*address, self._submitted, 0)
            deadline = SYSTEM_CLOCK.monotonic() + GONE_S_MAX
            while self._submitted in stats.names(*address):
                if SYSTEM_CLOCK.monotonic() > deadline:
                    raise StormError(f"{self._submitted} does not end", cure="`downspout storm logs`")
                SYSTEM_CLOCK.sleep(POLL_S / 4)


def _committed(commits: Mapping[TopicPartition, Any], tp: TopicPartition, start: int) -> int:
    commit = commits.get(tp)
    return start if commit is None else max(start, int(commit.offset))


def storm_settings(job: Job, engine: str) -> dict[str, dict[str, Any]]:
    """Return the settings for each component: those of the user, as on the other engines, and our isolation."""
    settings: dict[str, dict[str, Any]] = {}
    ours = job.isolation(engine)
    for name, given in job.confs.items():
        own = {key: value for key, value in given.items() if key.partition(".")[0] in OURS}
        settings[name] = {**own, **ours.get(name, {})}
    for spout in job.spouts:
        for name in (spout.name, *spout.emitters):
            settings[name]["run.until"] = "end"  # so that the spout stops at kafka.stop_offsets
    return settings


def isolated(target: str, topology: str | None, root: str, settings: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return a topology's class with these settings in its components; called in the process of ``sparse``."""
    with contextlib.chdir(root):
        cls, _ = load_class(target, topology)
    for name, component in {**cls.thrift_spouts, **cls.thrift_bolts}.items():
        component.common.json_conf = json.dumps({**json.loads(component.common.json_conf or "{}"), **settings[name]})
    return cls

"""A job on the single-node Storm that runs here: submitted by stock streamparse under another name, and killed.

`sparse submit -o` sets options of a whole topology, which are weaker than those of a component, and where a sink writes
is a setting of that sink. So what is submitted is a topology of two lines in a project of its own: the user's, with our
settings put into its components (:func:`isolated`).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from downspout.clock import SYSTEM_CLOCK
from downspout.compare.engines import Engine, EngineError, run_program
from downspout.compare.job import Job
from downspout.compare.states import committed_in
from downspout.engine.load import load_class
from downspout.errors import StormError
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import TopicPartition
from downspout.settings.secrets import resolve_client
from downspout.settings.table import SCOPES
from downspout.storm import nimbus, programs, stats
from downspout.storm.node import StormNode, default_directory

POLL_S = 1.0
STALLED_S_MAX = 180.0  # A run without any commit for this long is stopped
GONE_S_MAX = 60.0

OURS = SCOPES - {"run"}

TOPOLOGY = """\
from downspout.compare.storm import isolated

Isolated = isolated({target!r}, {topology!r}, {root!r}, {settings!r})
"""


class Storm(Engine):
    """The topology on Storm: ``sparse submit``, and ``sparse kill`` once all is committed."""

    name = "storm"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._node = StormNode(default_directory())
        self._submitted = f"compare-{job.graph.name}-{job.id}"

    def missing(self) -> str:
        """Say if no Storm of ours runs, or the folder is no streamparse project."""
        status = self._node.steady_status()
        if status.state != "running":
            return f"Storm is {status.condition} (`downspout storm start`)"
        return "" if Path("config.json").is_file() else "the folder has no config.json, which `sparse submit` reads"

    def run(self) -> None:
        """Submit it, wait until the ranges are committed, and kill it."""
        project = self._project()
        environ = {**os.environ, **programs.environment(self._node)}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), environ.get("PYTHONPATH")]))
        sparse = str(Path(sys.executable).with_name("sparse"))
        with self._killed():
            run_program(
                [sparse, "submit", "-n", "isolated", "-N", self._submitted], self.folder, cwd=project, environ=environ
            )
            self._wait()

    def _project(self) -> Path:
        """Make a project that is the user's but for the topology."""
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
        """Return how many offsets are not committed."""
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
        """Kill the topology at the end, if it was submitted, and wait until its workers are gone."""
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
    """Return what is put into each component: what was given to it, as the other engines know it, and our isolation."""
    settings: dict[str, dict[str, Any]] = {}
    ours = job.isolation(engine)
    for name, given in job.confs.items():
        own = {key: value for key, value in given.items() if key.partition(".")[0] in OURS}
        settings[name] = {**own, **ours.get(name, {})}
    for spout in job.spouts:
        for name in (spout.name, *spout.emitters):
            settings[name]["run.until"] = "end"  # which lets a spout stop at kafka.stop_offsets
    return settings


def isolated(target: str, topology: str | None, root: str, settings: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return a topology's class with settings put into its components; for the process of ``sparse``."""
    with contextlib.chdir(root):
        cls, _ = load_class(target, topology)
    for name, component in {**cls.thrift_spouts, **cls.thrift_bolts}.items():
        component.common.json_conf = json.dumps({**json.loads(component.common.json_conf or "{}"), **settings[name]})
    return cls

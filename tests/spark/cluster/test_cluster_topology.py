"""A topology on clusters whose executors have nothing but a Python and the packaged environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from downspout.broker import EmbeddedKafka
from downspout.errors import MissingExtraError
from downspout.kafka import KafkaCluster
from downspout.system import python_name
from tests.spark.cluster.clustered import SHOUT, make_project
from tests.spark.standalone import LOCAL_CLUSTER, ROOT, Cluster, driver_environment, forget_environments

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]

LINES = [f"one two{number % 7} three{number % 11} two{number % 3}" for number in range(400)]


class Place:
    """A project with its topic, and a way to submit its topology."""

    def __init__(self, project: Path, bootstrap: str, topic: str) -> None:
        self.project, self.bootstrap, self.topic = project, bootstrap, topic
        make_project(project)

    def publish(self, lines: list[str]) -> None:
        cluster = KafkaCluster(self.bootstrap)
        cluster.ensure_topic(self.topic, 2)
        producer = cluster.producer()
        for number, line in enumerate(lines):
            producer.send(self.topic, key=None, value=line.encode(), partition=number % 2)
        producer.flush()
        producer.close()

    def start(self, master: str, archive: Path | None, *more: str, home: Path) -> subprocess.Popen[str]:
        own = ["--master", master, *(["--bundle", str(archive)] if archive else []), "--python", python_name()]
        settings = {"kafka.bootstrap": self.bootstrap, "lines:kafka.topics": self.topic}
        run = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        spark = ["--", "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=1g"]
        command = [sys.executable, "-m", "downspout", "spark", "submit", "topologies/clustered.py"]
        # Not this process's sys.path: other tests have put their projects there, with spouts/ and bolts/ of their own.
        environ = driver_environment(home, master) | {"PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}"}
        return subprocess.Popen(
            [*command, *own, *run, *more, *spark],
            cwd=self.project,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, master: str, archive: Path | None, *more: str, home: Path) -> tuple[int, str]:
        """Submit the topology and wait; return the exit code and what was said."""
        process = self.start(master, archive, *more, home=home)
        try:
            said, _ = process.communicate(timeout=800)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            forget_environments(home)
        return process.returncode, said

    def rows(self, sink: str, *columns: str) -> Counter[tuple[object, ...]]:
        table = ds.dataset(self.project / "output" / sink, format="parquet", partitioning=None).to_table(list(columns))
        return Counter(zip(*(table[name].to_pylist() for name in columns), strict=True))


@pytest.fixture
def place(kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path) -> Place:
    """A project of the test's own, whose topic has records."""
    made = Place(tmp_path / "project", kafka_broker.bootstrap, topic_name)
    made.publish(LINES)
    return made


WORDS = Counter(word.upper() for line in LINES for word in line.split())


@pytest.mark.sweep
def test_a_topology_writes_the_same_rows_with_the_packaged_environment(
    place: Place, packed: Path, standalone: Cluster, tmp_path: Path
) -> None:
    """Two sinks, a stateful bolt and modules of the project's: each row once, by what the archive brought alone."""
    writes_the_same_rows(place, packed, standalone.master, tmp_path / "machine")


@pytest.mark.sweep
def test_it_does_so_on_several_executors(place: Place, packed: Path, tmp_path: Path) -> None:
    writes_the_same_rows(place, packed, LOCAL_CLUSTER, tmp_path / "machine")


def writes_the_same_rows(place: Place, packed: Path, master: str, machine: Path) -> None:
    """Run the topology to the end, and look at all rows."""
    code, said = place.run(master, packed, "--until", "end", "--records-per-batch", "250", home=machine)
    assert code == 0, said
    assert place.rows("words", "word") == Counter({(word,): count for word, count in WORDS.items()})
    assert place.rows("counts", "word", "seen") == Counter(
        (word, number) for word, count in WORDS.items() for number in range(1, count + 1)
    )
    assert max(place.rows("words", "_partition", "_offset", "_path").values()) == 1
    assert all("/environment/" in str(file) for (file,) in place.rows("words", "library"))


@pytest.mark.sweep
def test_a_topology_whose_executors_cannot_import_writes_nothing(
    place: Place, standalone: Cluster, tmp_path: Path
) -> None:
    """Without the archive the error names executor, module, reason and cure before a record is read."""
    code, said = place.run(standalone.master, None, "--until", "end", home=tmp_path / "machine")
    assert code == MissingExtraError.exit_code, said
    assert f"downspout: The executor on {os.uname().nodename} ({standalone.folder / 'work'}{os.sep}" in said
    assert "cannot import downspout: ModuleNotFoundError: No module named 'downspout'. Try: make the archive" in said
    assert "Traceback" not in said
    assert not list(place.project.glob("output/*/*.parquet"))


@pytest.mark.sweep
def test_an_archive_of_yesterday_is_noticed(place: Place, standalone: Cluster, packed: Path, tmp_path: Path) -> None:
    """A bolt that was changed since the archive was made is an error that names its module."""
    (place.project / "src" / "shouting.py").write_text(SHOUT.replace("upper", "lower"), encoding="utf-8")
    code, said = place.run(standalone.master, packed, "--until", "end", home=tmp_path / "machine")
    assert code == MissingExtraError.exit_code, said
    assert "has another shouting than the driver: its source differs" in said
    assert not list(place.project.glob("output/*/*.parquet"))


@pytest.mark.sweep
def test_sigterm_ends_a_submitted_topology_and_the_next_submit_goes_on(
    place: Place, standalone: Cluster, packed: Path, tmp_path: Path
) -> None:
    """Stopped in the middle, and submitted again, it ends in the same rows."""
    gate = tmp_path / "gate"  # where it waits for our signal if it is quicker than we are
    place.publish([str(gate), *LINES[:200]])
    words = WORDS + Counter([str(gate).upper(), *(word.upper() for line in LINES[:200] for word in line.split())])
    process = place.start(standalone.master, packed, "--records-per-batch", "20", home=tmp_path / "machine")
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("batch 2:"):
                break
        assert process.poll() is None, "".join(said)
        process.terminate()
        gate.touch()
        rest, _ = process.communicate(timeout=800)
        assert process.returncode == 128 + signal.SIGTERM, rest
        assert "stopped by SIGTERM after the batch that was under way" in rest
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert 0 < sum(place.rows("words", "word").values()) < sum(words.values())
    code, text = place.run(standalone.master, packed, "--until", "end", home=tmp_path / "machine")
    assert code == 0, text
    assert place.rows("words", "word") == Counter({(word,): count for word, count in words.items()})
    assert max(place.rows("counts", "word", "seen").values()) == 1

"""The Python side of a topology as one archive."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from downspout.cli import main
from downspout.errors import ConfigError, MissingExtraError
from tests.command import BASE_PYTHON
from tests.storm.support import ROOT, Place

WITNESS = """\
import json
import sys

from downspout.component import Bolt


class Witness(Bolt):
    def process(self, tup):
        import kafka, pyarrow, streamparse

        names = ["downspout", "kafka", "pyarrow", "pystorm", "streamparse"]
        found = {name: sys.modules[name].__file__ for name in names}
        with open(self.storm_conf["witness.file"], "w") as file:
            json.dump({"python": sys.executable, "path": sys.path, **found}, file)
"""
TOPOLOGY = """\
from streamparse import Topology

from bolts.parquet import ParquetBolt
from spouts.kafka import KafkaSpout
from witness import Witness


class Bare(Topology):
    config = {{
        "topology.environment": {{"PATH": "/usr/bin:/bin", "PYTHONPATH": "", "DOWNSPOUT_PYTHON": "{python}"}},
        "witness.file": "{seen}",
        "kafka.commit_period_ms": 1000,
        "parquet.flush_age_s": 1,
    }}
    spout = KafkaSpout.spec(topics=["{topic}"], fields=["origin", "value"])
    witness = Witness.spec(inputs=[spout])
    rows = ParquetBolt.spec(inputs=[spout], directory="output/{topic}", schema={{"value": "string"}})
"""


@pytest.mark.sweep
@pytest.mark.storm
@pytest.mark.slow
def test_a_worker_needs_only_the_bundle_and_a_bare_python(
    storm: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `sparse submit` with `use_virtualenv`, all that components import comes from the unpacked bundle."""
    project, seen, topic = tmp_path / "project", tmp_path / "seen.json", storm.publish(1_000)
    for folder in ("topologies", "src"):
        (project / folder).mkdir(parents=True)
    for name in ("spouts", "bolts", "downspout"):
        (project / "src" / name).symlink_to(ROOT / name)
    (project / "project.clj").symlink_to(ROOT / "project.clj")
    (project / "src" / "witness.py").write_text(WITNESS, encoding="utf-8")
    text = TOPOLOGY.format(python=BASE_PYTHON, seen=seen, topic=topic)
    (project / "topologies" / "bare.py").write_text(text, encoding="utf-8")
    config = json.loads((ROOT / "config.json").read_text(encoding="utf-8"))
    config["envs"]["local"] |= {
        "virtualenv_root": str(tmp_path / "venvs"),
        "options": {"use_virtualenv": True, "install_virtualenv": False},
    }
    (project / "config.json").write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.chdir(project)
    assert main(["storm", "bundle", "bare"]) == 0
    with tarfile.open(project / "bare.tar.gz") as archive:
        archive.extractall(tmp_path / "venvs", filter="data")
    _runs_with_a_bare_python(tmp_path / "venvs" / "bare")
    code, output = storm.sparse("submit", "-n", "bare", folder=project)
    assert code == 0, output
    storm.wait_for("bare", 0)
    assert storm.audit(topic).exit_code == 0
    witnessed = json.loads(seen.read_text(encoding="utf-8"))
    venv = sys.prefix if sys.prefix != sys.base_prefix else "no virtual environment"
    assert not any(each.startswith(venv) for each in witnessed.pop("path"))
    assert witnessed.pop("python") == BASE_PYTHON
    library = str(tmp_path / "venvs" / "bare" / "lib")
    assert all(file.startswith(library) for file in witnessed.values()), witnessed
    code, output = storm.sparse("kill", "-n", "bare", "--wait", "0", folder=project)
    assert code == 0, output


def _runs_with_a_bare_python(unpacked: Path) -> None:
    """See that the launcher runs, and that spout and sinks are imported from the bundle where nothing else is."""
    base = BASE_PYTHON  # not the one of a virtual environment, which would bring its packages
    bare = {"PATH": "/usr/bin:/bin", "DOWNSPOUT_PYTHON": base}
    launcher = unpacked / "bin" / "streamparse_run"
    said = subprocess.run([launcher, "--help"], env=bare, capture_output=True, text=True, check=True).stdout
    assert "target_class" in said
    code = "import downspout.spouts.kafka, downspout.bolts.parquet as p; print(p.__file__)"
    bare["PYTHONPATH"] = str(unpacked / "lib")
    found = subprocess.run([base, "-s", "-P", "-c", code], env=bare, capture_output=True, text=True, check=True).stdout
    assert found.startswith(str(unpacked))


def test_a_topology_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`downspout storm bundle` says which file it looked for."""
    monkeypatch.chdir(tmp_path)
    assert main(["storm", "bundle", "nothing"]) == ConfigError.exit_code
    assert "topologies/nothing.py" in capsys.readouterr().err


def test_what_workers_cannot_import_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A component that imports what is neither in the bundle nor in the jar is named; no archive is made."""
    for folder in ("topologies", "src"):
        (tmp_path / folder).mkdir()
    bolt = "from streamparse import Spout\nimport _pytest\n\n\nclass Lines(Spout):\n    outputs = ['line']\n"
    (tmp_path / "src" / "spout_of_the_bundle_test.py").write_text(bolt, encoding="utf-8")
    text = "from streamparse import Topology\nfrom spout_of_the_bundle_test import Lines\n\n\nclass T(Topology):\n"
    (tmp_path / "topologies" / "t.py").write_text(f"{text}    lines = Lines.spec()\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["storm", "bundle", "t"]) == MissingExtraError.exit_code
    said = (
        "spout_of_the_bundle_test cannot be imported from the archive: ModuleNotFoundError: No module named '_pytest'"
    )
    assert f"{said}. Try: --with pytest" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.gz"))

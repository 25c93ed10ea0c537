"""`downspout spark bundle`: the executors' imports, in one archive."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from downspout.cli import main
from downspout.errors import ConfigError, MissingExtraError
from downspout.spark import submit
from tests.command import BASE_PYTHON


class Nothing:
    """An archive that takes what it is given, and is not there."""

    add = add_text = add_packages = lambda self, *given: None


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A streamparse project with a module in each of its places, and one more beside them."""
    files = {
        "topologies/t.py": "import beside\n",
        "topologies/beside.py": "",
        "src/bolts/shout.py": "",
        "src/words.py": "",
        "lib/more/deep.py": "",
        "lib/alone.py": "",
        "README.md": "",
        "output/rows.parquet": "",
    }
    for name, text in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "project"


def places(project: Path, *added: str) -> set[str]:
    return {place for place, _ in submit.project_files(project, map(Path, added))}


def test_a_projects_modules_are_packed_as_they_are_imported(project: Path) -> None:
    """What lies in src/ loses that name, topologies keep theirs; output and documents stay out."""
    assert places(project) == {"topologies/t.py", "topologies/beside.py", "bolts/shout.py", "words.py"}


def test_more_of_a_project_is_packed_on_request(project: Path) -> None:
    """--add takes a file or a folder, below its own path."""
    assert places(project, "lib/more", "lib/alone.py") - places(project) == {"lib/more/deep.py", "lib/alone.py"}


@pytest.mark.parametrize("added", ["nothing", "../elsewhere"])
def test_what_is_no_part_of_the_project_is_refused(project: Path, added: str) -> None:
    """A path that does not exist, or lies outside, is an error that names it."""
    (project.parent / "elsewhere").mkdir()
    with pytest.raises(ConfigError, match=f"^{added} is not a file or folder of the project"):
        places(project, added)


@pytest.mark.slow
@pytest.mark.sweep  # executors of a standalone cluster do, in test_cluster_topology.py
def test_a_bare_python_imports_all_of_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpacked elsewhere, a bare interpreter imports all from it alone; no PySpark and no Java is in it."""
    monkeypatch.chdir(project)
    assert main(["spark", "bundle", "topologies/t.py"]) == 0
    elsewhere = project.parent / "elsewhere"
    with tarfile.open("t.tar.gz") as archive:
        archive.extractall(elsewhere / submit.FOLDER, filter="data")
    code = (
        "import topologies.t, beside, bolts.shout, words, downspout.spouts.kafka, downspout.bolts.parquet, pandas\n"
        "import importlib.util, downspout.engine.loop\n"
        "print(downspout.__file__, importlib.util.find_spec('pyspark'))"
    )
    bare = {"PATH": "/usr/bin:/bin", "PYTHONPATH": submit.EXECUTOR_PATH}
    python = [BASE_PYTHON, "-s", "-P", "-c", code]
    said = subprocess.run(python, env=bare, cwd=elsewhere, capture_output=True, text=True, check=False)
    assert said.stdout == f"{elsewhere}/environment/downspout/__init__.py None\n", said.stderr
    readme = (elsewhere / submit.FOLDER / "README").read_text(encoding="utf-8")
    assert readme.startswith(f"Python {sys.version_info[0]}.{sys.version_info[1]}, ")
    assert "\npyarrow " in readme
    assert "\njdk4py " not in readme


def test_a_topology_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`downspout spark bundle` says which file it looked for, and makes no archive."""
    monkeypatch.chdir(tmp_path)
    assert main(["spark", "bundle", "topologies/nothing.py"]) == ConfigError.exit_code
    assert "topologies/nothing.py" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


BOLT = """\
from streamparse import Bolt, Spout
import {}


class Lines(Spout):
    outputs = ["line"]


class Shout(Bolt):
    outputs = ["word"]
"""
TOPOLOGY = """\
from streamparse import Topology

import only_the_driver
from {} import Lines, Shout


class T(Topology):
    lines = Lines.spec()
    shout = Shout.spec(inputs=[lines])
"""


@pytest.mark.parametrize(
    ("imported", "said"),
    [
        ("helpers", "shouting cannot be imported from the archive: ModuleNotFoundError: No module named 'helpers'. "
                    "Try: --add helpers.py"),
        ("_pytest.config", "No module named '_pytest'. Try: --with pytest"),
        ("pyarrow.compute", ""),
    ],
)  # fmt: skip
def test_what_executors_cannot_import_is_said_before_the_work(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    imported: str,
    said: str,
) -> None:
    """A bolt that imports what the archive would lack is named, with the option that packs it; nothing is written.

    What the topology's file imports beside its components does not matter: executors do not import it.
    """
    name = f"shouting_{imported.replace('.', '_')}"
    (project / "topologies" / f"{name}.py").write_text(BOLT.format(imported), encoding="utf-8")
    (project / "topologies" / "t.py").write_text(TOPOLOGY.format(name), encoding="utf-8")
    (project / "helpers.py").touch()
    (project / "only_the_driver.py").touch()
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", [str(project), *sys.path])
    written: list[str] = []

    @contextlib.contextmanager
    def archive(target: Path) -> Iterator[Nothing]:
        target.touch()
        written.append(target.name)
        yield Nothing()

    monkeypatch.setattr(submit, "archive", archive)
    code = main(["spark", "bundle", "topologies/t.py"])
    text = capsys.readouterr().err
    assert said.replace("shouting", name) in text
    assert (code, bool(written)) == ((MissingExtraError.exit_code, False) if said else (0, True))

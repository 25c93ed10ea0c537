"""The wheel, beside a project that somebody else made."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.scaffold.readme import commands, shell

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 600  # For a command, on a machine that does much else

TOPOLOGY = """
from streamparse import Grouping, Topology

from bolts.wordcount import WordCountBolt
from downspout.spouts.kafka import KafkaSpout


class Lines(Topology):
    lines = KafkaSpout.spec(topics=["%s"], fields=["value"])
    count = WordCountBolt.spec(inputs={lines: Grouping.fields("value")}, par=2)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def clean_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install it, and nothing of this checkout, into a new environment; libraries are borrowed from ours."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(pip, check=True, timeout=LIMIT_S)
    # A path in a .pth file is searched, but the .pth files in it are not read: so ours, which names the checkout,
    # stays out.
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return home


def run(command: list[str], cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user would, without this process's import paths."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | environ
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT_S)


def test_the_wheel_has_one_top_level_package_and_two_of_stubs(wheel: Path) -> None:
    """Nothing in the wheel can hide, or be hidden by, a user's spouts and bolts; streamparse and pystorm have types."""
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {
        "downspout",
        "streamparse-stubs",
        "pystorm-stubs",
    }
    inside = zipfile.ZipFile(wheel).namelist()
    assert "downspout/spouts/kafka.py" in inside
    assert "downspout/bolts/parquet.py" in inside
    assert "downspout/py.typed" in inside
    assert {"streamparse-stubs/py.typed", "pystorm-stubs/bolt.pyi"} <= set(inside)
    templates = {
        f"downspout/{path.relative_to(ROOT / 'downspout')}" for path in ROOT.glob("downspout/scaffold/templates/*")
    }
    assert templates <= set(inside)
    assert len(templates) > 10


@pytest.mark.sweep
@pytest.mark.slow
def test_every_module_of_the_wheel_imports_without_the_checkout(clean_environment: Path, tmp_path: Path) -> None:
    code = (
        "import importlib, pkgutil, downspout\n"
        "found = [m.name for m in pkgutil.walk_packages(downspout.__path__, 'downspout.')]\n"
        "names = [name for name in found if '__main__' not in name]\n"
        "[importlib.import_module(n) for n in names]\n"
        "print(len(names), downspout.__file__)"
    )
    done = run([str(clean_environment / "bin" / "python"), "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(clean_environment) in done.stdout
    assert int(done.stdout.split()[0]) > 30


@pytest.mark.broker
def test_a_stock_quickstart_project_reads_kafka(
    clean_environment: Path, tmp_path: Path, kafka_broker: object, topic_name: str
) -> None:
    """A topology of a stock streamparse project reads Kafka through downspout.spouts.kafka.KafkaSpout to the end."""
    from downspout.kafka import cluster_for

    bootstrap: str = kafka_broker.bootstrap
    cluster = cluster_for(bootstrap)
    cluster.ensure_topic(topic_name, 2)
    producer = cluster.producer()
    for number in range(100):
        producer.send(topic_name, key=None, value=b"word%d" % (number % 10), partition=number % 2)
    producer.flush()
    producer.close()

    python = str(clean_environment / "bin" / "python")
    made = run(
        [python, "-c", "from streamparse.cli.sparse import main; main()", "quickstart", "words"],
        tmp_path,
        LEIN_ROOT="1",
    )
    assert made.returncode == 0, made.stderr
    project = tmp_path / "words"
    (project / "topologies" / "lines.py").write_text(TOPOLOGY % topic_name, encoding="utf-8")
    # A streamparse project keeps spouts/ and bolts/ below src/.
    command = [
        python,
        "-m",
        "downspout",
        "run",
        "topologies/lines.py",
        "--until",
        "end",
        "--set",
        f"kafka.bootstrap={bootstrap}",
    ]
    done = run(command, project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "100 tuple trees complete" in done.stderr


@pytest.mark.broker
def test_a_new_project_runs_as_its_readme_says(clean_environment: Path, tmp_path: Path) -> None:
    """`downspout new shop` makes a project in which every command of the README ends well, and each record is a row."""
    bin_folder = clean_environment / "bin"
    made = run([str(bin_folder / "downspout"), "new", "shop"], tmp_path)
    assert made.returncode == 0, made.stderr
    project = tmp_path / "shop"
    assert "from downspout.spouts.kafka import" in (project / "topologies" / "shop.py").read_text(encoding="utf-8")
    sections = commands(project / "README.md")
    assert set(sections) == {"Test", "Run", "Storm", "Spark", "Stop"}
    with shell(project, tmp_path / "home", sections["Stop"], bin_folder) as there:
        there.run(*sections["Test"], *sections["Run"], *sections["Stop"])
        assert "2 passed" in there.said("python -m pytest")
        assert "exact: 200 offsets" in there.said("downspout audit")
        assert "'customer_id': 'c" in there.said("python -c")
    rows = ds.dataset([str(path) for path in (project / "output" / "shop").glob("*.parquet")]).to_table()
    assert sorted(rows["id"].to_pylist()) == list(range(1, 201))

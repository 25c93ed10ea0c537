"""A checkout's ``spouts`` and ``bolts`` have the names that they have in the wheel."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import downspout.bolts.parquet
import downspout.spouts
import downspout.spouts.kafka
import spouts.kafka
from bolts.parquet import ParquetBolt

ROOT = Path(__file__).resolve().parents[1]


def test_both_names_give_one_class() -> None:
    """A class is the same under both names, and its module keeps its own spec; a pickle gives it back."""
    assert downspout.bolts.parquet.ParquetBolt is ParquetBolt
    assert downspout.spouts.kafka is spouts.kafka is downspout.spouts.kafka
    assert spouts.kafka.__spec__ is not None
    assert spouts.kafka.__spec__.name == spouts.kafka.__name__ == "spouts.kafka"
    assert pickle.loads(pickle.dumps(downspout.bolts.parquet.ParquetBolt)) is ParquetBolt


def test_a_module_that_does_not_exist_is_not_found() -> None:
    """The error names the module as it was written."""
    code = "import downspout.spouts.nowhere"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError: No module named 'downspout.spouts.nowhere'" in done.stderr


def test_a_project_with_spouts_of_its_own_has_both(tmp_path: Path) -> None:
    """A project whose own spouts hide those of the checkout still reaches them under the longer name."""
    (tmp_path / "spouts").mkdir()
    (tmp_path / "spouts" / "__init__.py").touch()
    (tmp_path / "spouts" / "mine.py").write_text("from downspout.spouts.kafka import KafkaSpout\n", encoding="utf-8")
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\n"
        "from spouts.mine import KafkaSpout\n"
        "from downspout.bolts.parse import JsonParseBolt\n"
        "print(KafkaSpout.__module__, JsonParseBolt.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["downspout.spouts.kafka", "bolts.parse"]

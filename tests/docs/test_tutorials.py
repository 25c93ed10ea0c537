"""The commands of the quickstart and of the tutorial do what the pages say, on a real broker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from downspout.sink.snapshot import read_table
from tests.scaffold.readme import BLOCK, commands, shell

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def script(page: Path, code_file: str) -> str:
    """Return a page's commands as one script, in which Python is written to a file."""
    parts = ["set -ex"]
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if not language:
            parts.append(text)
        elif language == "python":
            parts.append(f"cat > {code_file} <<'PYTHON'\n{text}PYTHON")
    return "\n".join(parts)


def stopped(home: Path) -> list[str]:
    """Return the command that stops the broker of a state directory."""
    return [f"downspout kafka stop --dir {home / 'kafka'}"]


@pytest.mark.sweep
def test_the_tutorial_on_bad_records_runs(tmp_path: Path) -> None:
    """Two bad records become dead letters, one is repaired and replayed, and audits before and after are exact."""
    home = tmp_path / "home"
    with shell(tmp_path, home, stopped(home)) as run:
        run.run(script(ROOT / "docs" / "how-to" / "repair-bad-records.md", "src/shop_bolts.py"))
        printed = next(iter(run.printed.values()))
    for text in (
        "2 dead letters were written to topic shop.dead-letters",
        "total = '12,50' does not fit decimal(18,2)",
        "exact: 201 offsets are in the files, each exactly once; 2 dead-lettered",
        "2 passed",
        "1 record written to shop",
        "exact: 202 offsets are in the files, each exactly once; 1 dead-lettered, 1 replayed",
    ):
        assert text in printed, f"{text}\n{printed}"
    totals = {row["id"]: str(row["total"]) for row in read_table(tmp_path / "shop/output/shop").to_pylist()}
    assert (len(totals), totals[201], totals[203], 202 in totals) == (202, "12.50", "8.00", False)


def checkout(folder: Path) -> Path:
    """Return a folder like this repository, for output of its own."""
    folder.mkdir()
    for name in ("src", "README.md"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "topologies").mkdir()
    for path in (ROOT / "topologies").glob("*.py"):
        (folder / "topologies" / path.name).symlink_to(path)
    return folder


def test_the_quickstart_produces_the_data_that_it_uses(tmp_path: Path) -> None:
    """Its commands run in their order: the words of the README are counted, and its orders are rows, by its audits."""
    page = ROOT / "docs" / "quickstart.md"
    sections = commands(page)
    words = [line for line in sections["Your own text, word by word"] if not line.startswith(". ")]
    orders = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    project, home = checkout(tmp_path / "clone"), tmp_path / "home"
    (project / "topologies" / "orders.py").write_text(orders[0], encoding="utf-8")
    with shell(project, home, stopped(home)) as run:
        run.run(*words, *sections["Your own topology"])
        audits = {line: text for line, text in run.printed.items() if line.startswith("downspout audit")}
        assert len(audits) == 2
        assert all("exact: " in text for text in audits.values()), audits
    assert sorted(read_table(project / "output/orders")["customer"].to_pylist()) == ["Ada", "Ken"]

"""The commands of the quickstart and of the tutorial work as described, on a real broker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from downspout.sink import read_table
from tests.scaffold.readme import commands, shell

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.broker, pytest.mark.slow]


STEP = re.compile(r"(?:`(?P<file>[\w/.]+)`[^`]*?)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
"""A block of a page, and the file as which it is to be saved, if the words before it name one."""


def steps(page: Path) -> tuple[str, dict[int, str]]:
    """Return a page's commands as one script, and by the number of each block of commands what it shows of its output.

    A block of Python becomes the file that is named before it. The script prints ``@@number`` before each block.
    """
    parts, shown = ["set -e"], dict[int, str]()
    number = 0
    for step in STEP.finditer(page.read_text(encoding="utf-8")):
        if step["kind"] == "python":
            parts.append(f"cat > {step['file']} <<'PYTHON'\n{step['text']}PYTHON")
        elif step["kind"] == "text":
            shown[number] = step["text"]
        elif not step["kind"]:
            number += 1
            parts += [f"echo @@{number}", step["text"]]
    return "\n".join(parts), shown


def missing(printed: str, shown: str) -> list[str]:
    """Return the lines that are shown and not printed, in their order; … stands for anything."""
    lines, at, found = [line.rstrip() for line in printed.splitlines()], 0, []
    for line in shown.splitlines():
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
        place = next((place for place in range(at, len(lines)) if pattern.fullmatch(lines[place])), None)
        if place is None:
            found.append(line)
        else:
            at = place + 1
    return found


def stopped(home: Path) -> list[str]:
    """Return the command that stops the broker of a state directory."""
    return [f"downspout kafka stop --dir {home / 'kafka'}"]


@pytest.mark.sweep
@pytest.mark.spark
def test_the_tutorial_runs(tmp_path: Path) -> None:
    """Each command of the tutorial runs, in its order, and prints the lines that the page shows."""
    commands, shown = steps(ROOT / "docs" / "tutorial.md")
    home = tmp_path / "home"
    with shell(tmp_path, home, stopped(home)) as run:
        run.run(commands.replace("--ui ", "--ui 0 "))
        printed = dict(
            re.findall(r"^@@(\d+)\n(.*?)(?=^@@|\Z)", next(iter(run.printed.values())), re.DOTALL | re.MULTILINE)
        )
    assert len(shown) == 7
    for number, lines in shown.items():
        assert missing(printed[str(number)], lines) == [], printed[str(number)]


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

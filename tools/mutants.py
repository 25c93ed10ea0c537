"""``make mutants``: change the code in small ways, and check that the quick tests notice.

The ledger and the core of batches are changed in every way that mutmut knows. The other packages have some ten thousand
mutants, each of which takes seconds, so of these a sample is drawn, the same for the same seed. A mutant that survives
is no proof of a missing test: it may be equal to the original, or change a text that only people read. So the list is
read, not just the table.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
NONE = "*__mutmut_none"
"""A pattern that matches no mutant: mutmut creates all mutants, runs the tests once, and ends."""
KILLED = frozenset({1, 3, 24, 36, 37, 152, 255, -24, -11, -9})
"""Exit codes by which mutmut knows that a test failed, that one took too long, or that a type was wrong."""
UNTESTED = 33
FAILED = re.compile(r"^FAILED (\S+?)(?:\[| - |$)", re.MULTILINE)
PRELOAD = """\
import os

if "MUTANT_UNDER_TEST" in os.environ:
    here = os.getcwd()
    os.chdir({project!r})
    from mutmut.configuration import config
    config()
    os.chdir(here)
"""
"""A ``sitecustomize``. A changed function looks for mutmut's configuration in the current directory when it is first
called, and some tests have changed the directory by then."""


@dataclass(frozen=True)
class Package:
    """What is changed, and which tests should notice, besides its doctests. Of these only those that reach it are run.

    Tests of another package are here where it is the first to rely on this one. All that pass through it would be too
    many: for a mutant that survives each of them is run.
    """

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    goal: float
    sample: int | None = None


PACKAGES = {
    "ledger": Package(("downspout/ledger/*",), ("tests/ledger",), 0.95),
    "batches": Package(
        ("downspout/batches/core/*",),
        (
            "tests/batches/test_coordinator.py",
            "tests/batches/test_kafka_batches.py",
            "tests/batches/test_state_bolt.py",
            "tests/batches/test_values.py",
        ),
        0.95,
    ),
    "batching": Package(
        (
            *(f"downspout/batches/{name}.py" for name in ("applying", "coordinating", "emitting", "kafka_source")),
            *(f"downspout/batches/{name}.py" for name in ("pairs", "reader", "setup", "starts", "streams", "updates")),
            "bolts/state.py",
            "spouts/batches.py",
        ),
        (
            "tests/batches/test_coordinating.py",
            "tests/batches/test_reader.py",
            "tests/batches/test_state_bolt.py",
            "tests/batches/test_recreated.py",
            "tests/batches/test_kafka_batches.py",
            "tests/batches/test_kafka_batches_faults.py",
            "tests/batches/test_check.py",
        ),
        0.90,
        100,
    ),
    "spout": Package(
        ("downspout/spout/*", "spouts/kafka.py"),
        ("tests/spout", "tests/ledger", "tests/system", "tests/wire", "tests/producing"),
        0.90,
        100,
    ),
    "kafka": Package(("downspout/kafka/*",), ("tests/kafka", "tests/spout", "tests/cli", "tests/security"), 0.90, 100),
    "producing": Package(
        ("downspout/producing/*", "bolts/kafka.py"),
        ("tests/producing", "tests/cli", "tests/wire", "tests/engine", "tests/run"),
        0.90,
        100,
    ),
    "dead_letters": Package(
        ("downspout/dead_letters/*", "bolts/dead_letter.py"),
        ("tests/dead_letters", "tests/parse", "tests/spout"),
        0.90,
        100,
    ),
    "engine": Package(("downspout/engine/*",), ("tests/engine", "tests/testing", "tests/run", "tests/wire"), 0.90, 100),
    "sink": Package(("downspout/sink/*", "bolts/parquet.py"), ("tests/sink", "tests/audit", "tests/crash"), 0.90, 100),
}
LEFT_OUT_MAX = 10
"""So many tests may fail though nothing is changed: some read the source, which holds all mutants at once."""


def main(argv: list[str] | None = None) -> int:
    """Run the packages that are asked for, print their table, and return 1 where a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"of {', '.join(PACKAGES)} (all)")
    parser.add_argument("--sample", type=int, help="mutants of each package but the ledger (100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--children", type=int, default=2, help="processes at once")
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.packages) - set(PACKAGES):
        parser.error(f"no such package: {', '.join(sorted(unknown))}")
    missed = False
    rows = ["| package | mutants | tried | noticed | goal |", "| --- | ---: | ---: | ---: | ---: |"]
    for name in arguments.packages or PACKAGES:
        package = PACKAGES[name]
        count, tried = _run(name, package, arguments.sample or package.sample, arguments)
        noticed = sum(code in KILLED for code in tried.values())
        share = noticed / len(tried) if tried else 0.0
        missed |= share < package.goal
        rows.append(f"| {name} | {count:,} | {len(tried):,} | {noticed:,} ({share:.1%}) | {package.goal:.0%} |")
    print("\n".join(rows))
    return int(missed)


def _run(name: str, package: Package, sample: int | None, arguments: argparse.Namespace) -> tuple[int, dict[str, int]]:
    """Return how many mutants a package has, and the exit code of each that was tried."""
    with tempfile.TemporaryDirectory(prefix=f"mutants-{name}-") as place:
        project = Path(place)
        _copy(project)
        print(f"{name}: making mutants, and running the tests once", flush=True)
        children = ("--max-children", str(arguments.children))
        left_out: list[str] = []
        while True:
            _configure(project / "pyproject.toml", package, left_out)
            said = _mutmut(project, "run", *children, NONE)
            failed = FAILED.search(said) if "failed to collect stats" in said else None
            if failed is None or len(left_out) == LEFT_OUT_MAX:
                break
            left_out.append(failed[1])
            print(f"{name}: left out, since it fails on what is not changed too: {failed[1]}", flush=True)
        every = sorted(_codes(project))
        if failed is not None or not every:
            raise SystemExit(f"mutmut has tried no mutants of {name}:\n{said[-4000:]}")
        chance = random.Random(arguments.seed)
        chosen = every if sample is None else sorted(chance.sample(every, min(sample, len(every))))
        print(f"{name}: {len(chosen):,} of {len(every):,} mutants", flush=True)
        said = _mutmut(project, "run", *children, *chosen)
        codes = _codes(project)
        tried = {mutant: code for mutant in chosen if (code := codes[mutant]) is not None}
        if len(tried) < len(chosen):
            print(f"{name}: {len(chosen) - len(tried)} mutants were not tried:\n{said[-4000:]}", flush=True)
        for mutant, code in sorted(tried.items()):
            if code not in KILLED:
                print(f"{'no test' if code == UNTESTED else 'survived'}: {mutant}", flush=True)
                print(_mutmut(project, "show", mutant), flush=True)
        return len(every), tried


def _copy(target: Path) -> None:
    """Copy the files that git tracks or would add, without caches and output."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for path in filter(None, listed.split("\0")):
        if (ROOT / path).is_file():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, target / path, follow_symlinks=False)


def _configure(file: Path, package: Package, left_out: list[str]) -> None:
    text = re.sub(r"\n\[tool\.mutmut\]\n(?:(?!\[).*\n)*", "\n", file.read_text(encoding="utf-8"))
    marks = "not slow and not broker and not spark and not storm"
    lines = {
        "source_paths": ["downspout", "bolts", "spouts"],
        "only_mutate": list(package.sources),
        "also_copy": [
            "topologies",
            "demos",
            "tests",
            "tools",
            "docs",
            "bench",
            "README.md",
            "Makefile",
            "requirements.lock",
            ".ci",
        ],
        "pytest_add_cli_args": [
            *("-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", marks, "--doctest-modules"),
            *(f"--deselect={test}" for test in left_out),
        ],
        "pytest_add_cli_args_test_selection": [
            *package.tests,
            *(source.removesuffix("/*") for source in package.sources),
        ],
    }
    table = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
    file.write_text(f"{text}\n[tool.mutmut]\n{table}", encoding="utf-8")


def _mutmut(project: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "mutmut", *arguments]
    preload = project / "preload"
    preload.mkdir(exist_ok=True)
    (preload / "sitecustomize.py").write_text(PRELOAD.format(project=str(project)), encoding="utf-8")
    environment = {**os.environ, "LEDGER_EXAMPLES": "20", "PYTHONPATH": str(preload)}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _codes(project: Path) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for meta in (project / "mutants").rglob("*.meta"):
        found.update(json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"])
    return found


if __name__ == "__main__":
    sys.exit(main())

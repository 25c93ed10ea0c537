"""Tests with a twin on the real broker, and tests that must give a reason for having none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAD = "import pytest\nfrom downspout.testing import FakeKafka\n\n"
SILENT = "def test_it():\n    FakeKafka('x').close()\n"
BY_FIXTURE = "@pytest.fixture\ndef mine():\n    return FakeKafka('x')\n\ndef test_it(mine):\n    mine.close()\n"
BOTH = "def test_it(bare_kafka):\n    assert bare_kafka.topic_names() == []\n"


def run(directory: Path, test: str) -> tuple[int, str]:
    """Run one test without the broker; return the exit code and what was printed."""
    (directory / "test_made.py").write_text(HEAD + test, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.twins", "-p", "no:cacheprovider", "-v", "-m", "not broker"]
    done = subprocess.run(
        [*command, "test_made.py"],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_twin_that_is_left_out_is_no_skip(tmp_path: Path) -> None:
    """Without the broker a test runs on the fake, its twin is deselected, and the summary counts it."""
    code, told = run(tmp_path, BOTH)
    assert code == 0, told
    assert "1 passed, 1 deselected" in told
    assert "skipped" not in told
    assert "1 tests of FakeKafka are written for the real broker too, 0 for the fake alone" in told


@pytest.mark.slow
def test_a_reason_is_printed(tmp_path: Path) -> None:
    """A test that says why it has no twin runs on the fake alone, and the run says why."""
    code, told = run(tmp_path, f"@pytest.mark.fake_only('a broker never does that')\n{BOTH}")
    assert code == 0, told
    assert "1 passed" in told
    assert "deselected" not in told
    assert "  1 a broker never does that" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "message"),
    [
        (SILENT, "uses FakeKafka: let it use bare_kafka"),
        pytest.param(BY_FIXTURE, "uses FakeKafka: let it use bare_kafka", marks=pytest.mark.sweep),
        (f"@pytest.mark.fake_only('')\n{BOTH}", "fake_only needs the reason"),
        pytest.param(f"@pytest.mark.fake_only()\n{BOTH}", "fake_only needs the reason", marks=pytest.mark.sweep),
        pytest.param(f"@pytest.mark.fake_only\n{SILENT}", "fake_only needs the reason", marks=pytest.mark.sweep),
    ],
    ids=["silent", "by a fixture", "an empty reason", "no reason", "a bare mark"],
)
def test_who_says_nothing_fails_the_run(tmp_path: Path, test: str, message: str) -> None:
    """A test that uses FakeKafka and neither has a twin nor tells why is an error; so is a mark without a reason."""
    code, told = run(tmp_path, test)
    assert code != 0
    assert message in told


@pytest.mark.sweep
@pytest.mark.slow
def test_the_broker_runs_a_sample(tmp_path: Path) -> None:
    """Of a test with parameters the broker runs one set in a third of all commits; the fake, and test-all, run all."""
    (tmp_path / "test_made.py").write_text(
        f"{HEAD}@pytest.mark.parametrize('number', [1, 2, 3])\ndef test_it(bare_kafka, number): ...\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "pytest", "-p", "tests.twins", "-p", "no:cacheprovider", "--collect-only", "-q"]
    found = []
    for whole, name in ("1", "a commit"), *(("", f"commit {number}") for number in range(6)):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TEST_ALL": whole, "SAMPLE": name}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout.count("[fake-") == 3, done.stdout + done.stderr
        found.append(done.stdout.count("[broker-"))
    assert found[0] == 3
    assert set(found[1:]) == {0, 1}

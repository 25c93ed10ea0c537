"""`downspout spark submit`: the command line and the environment of spark-submit."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from downspout.cli import build_parser, main
from downspout.cli.spark import split
from downspout.errors import ConfigError, MissingExtraError
from downspout.spark import check_pyspark, submit
from downspout.system import java, python_name

TOPOLOGY = "topologies/word_count.py"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    found: list[tuple[list[str], dict[str, str]]] = []

    def run(words: list[str], environ: dict[str, str]) -> int:
        found.append((words, environ))
        return 0

    monkeypatch.setattr(submit, "run", run)
    return found


Started = list[tuple[list[str], dict[str, str]]]


def test_ours_go_to_spark_and_the_rest_to_the_driver(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Master, archive and what is behind -- are spark-submit's; the topology and its options come after the script."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    bundle = tmp_path / "b.tar.gz"
    bundle.touch()
    arguments = (
        *(TOPOLOGY, "--set", "kafka.group=g", "--master", "spark://h:7077", "--bundle", str(bundle)),
        *("--set", "count:parquet.flush_rows=5", "--", "--executor-memory", "2g"),
    )
    assert main(["spark", "submit", *arguments]) == 0
    ((words, environ),) = started
    script = next(index for index, word in enumerate(words) if word.endswith("submitted.py"))
    assert words[0].endswith("pyspark/bin/spark-submit")
    assert words[1:5] == ["--master", "spark://h:7077", "--name", "word_count"]
    assert words[words.index("--archives") + 1] == f"{bundle}#environment"
    assert "spark.executorEnv.PYTHONPATH=environment:environment/topologies" in words
    assert words[script - 2 : script] == ["--executor-memory", "2g"]
    expected = [TOPOLOGY, "--set", "kafka.group=g", "--set", "count:parquet.flush_rows=5"]
    assert words[script + 1 :] == expected
    assert Path(words[script]).is_file()
    assert environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert environ["PATH"].startswith(str(Path(sys.executable).parent))


def test_without_an_archive_executors_keep_their_import_path(started: Started) -> None:
    """Executors that have all that is needed get neither an archive nor another PYTHONPATH."""
    main(["spark", "submit", TOPOLOGY, "--master", "spark://h:7077"])
    ((words, _),) = started
    assert "--archives" not in words
    assert not any("PYTHONPATH" in word for word in words)


def test_our_options_may_stand_before_the_topology() -> None:
    words = [
        "spark",
        "submit",
        "--master",
        "a",
        "--python",
        "p",
        TOPOLOGY,
        "--master",
        "b",
        "--set",
        "x=1",
        "--",
        "--c",
    ]
    own, run, options = split(build_parser().parse_args(words))
    assert (own.master, own.python, own.bundle) == ("b", "p", None)
    assert (run, options) == ([TOPOLOGY, "--set", "x=1"], ["--c"])


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ((TOPOLOGY,), "--master is missing"),
        ((TOPOLOGY, "--master", "m", "--bundle", "no.tar.gz"), r"no archive no.tar.gz. Try: `downspout spark bundle"),
        ((TOPOLOGY, "--master", "m", "--", "--deploy-mode", "cluster"), "the driver would run where"),
        (
            (TOPOLOGY, "--master", "m", "--set", "kafka.client.sasl_plain_password=hush"),
            "kafka.client.sasl_plain_password would be visible to everybody",
        ),
        (
            (TOPOLOGY, "--master", "m", "--set=lines:kafka.client.ssl_password=hush"),
            "lines:kafka.client.ssl_password would be visible to everybody",
        ),
    ],
)
def test_what_cannot_be_submitted_is_refused(
    started: Started, arguments: tuple[str, ...], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No master, no archive, a driver elsewhere or a secret are errors before Spark starts; no secret is repeated."""
    assert main(["spark", "submit", *arguments]) == ConfigError.exit_code
    said = capsys.readouterr().err
    assert wanted in said
    assert "hush" not in said
    assert not started


@pytest.mark.parametrize("value", ["env:KAFKA_PASSWORD", "file:/run/secrets/kafka"])
def test_references_to_secrets_are_passed_on(started: Started, value: str) -> None:
    main(["spark", "submit", TOPOLOGY, "--master", "m", "--set", f"kafka.client.sasl_plain_password={value}"])
    ((words, _),) = started
    assert words[-1] == f"kafka.client.sasl_plain_password={value}"


def test_an_option_that_run_does_not_know_is_refused_here(started: Started, capsys: pytest.CaptureFixture[str]) -> None:
    """What `downspout spark run` would refuse in the driver is refused before spark-submit starts."""
    with pytest.raises(SystemExit) as caught:
        main(["spark", "submit", TOPOLOGY, "--master", "m", "--untill", "end"])
    assert caught.value.code == 2
    assert "--untill" in capsys.readouterr().err
    assert not started


def test_a_spark_home_without_programs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(MissingExtraError, match=f"{tmp_path}/bin/spark-submit is not an executable program"):
        submit.spark_submit()


def test_the_workers_name_for_python_must_be_one_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is this Python's version by name; a name that the driver's machine does not have is an error."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert submit.environment()["PYSPARK_PYTHON"] == python_name()
    with pytest.raises(MissingExtraError, match=r"There is no python9\.9 on this machine"):
        submit.environment("python9.9")


def test_no_java_is_named_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a Java, and with one that is too old, the error says so, and what to install."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "bundled_home", lambda: None)
    with pytest.raises(MissingExtraError, match="there is none"):
        submit.environment()
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n", encoding="utf-8")
    old.chmod(0o755)
    with pytest.raises(MissingExtraError, match=r"Java 17 or newer is needed, but .*/java is version 8"):
        submit.environment()


@pytest.mark.parametrize("version", ["4.1.4", "4.0.0", "3.5.9"])
def test_an_old_pyspark_is_refused_by_name(version: str) -> None:
    """`format("downspout")` on a PySpark whose sources cannot be limited says which version is there and is needed."""
    with pytest.raises(MissingExtraError, match=f"^PySpark {version} is too old: .* 4.2"):
        check_pyspark(version)


STAND_IN = """\
import os, signal, subprocess, sys
driver = subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[2:]], stdin=subprocess.PIPE)
sys.exit(driver.wait())
"""
"""Stands in spark-submit's place: a process whose child is the driver, and whose exit code is the driver's."""

TOLD = """\
import signal, sys
from pathlib import Path
from downspout.spark.submit import write_driver_file
def end(number, frame):
    Path(sys.argv[1]).write_text("signalled")
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, end)
write_driver_file()
print("ready", flush=True)
signal.pause()
"""

SUBMITTING = """\
import os, sys
from downspout.spark import submit
sys.exit(submit.run([sys.executable, "-c", *sys.argv[1:]], dict(os.environ)))
"""


def test_a_signal_reaches_the_driver_and_its_exit_code_comes_back(tmp_path: Path) -> None:
    """SIGTERM to the program that submits is the driver's to handle; spark-submit in between does not hear it."""
    words = [sys.executable, "-c", SUBMITTING, STAND_IN, TOLD, str(tmp_path / "seen")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()
    assert (tmp_path / "seen").read_text(encoding="utf-8") == "signalled"


def test_killed_before_there_is_a_watchdog_it_leaves_nothing_behind() -> None:
    """Killed right after it has started spark-submit, the program takes it along: that has not even begun."""
    killed = "import signal\nsubmit.start_watchdog = lambda *given: os.kill(os.getpid(), signal.SIGKILL)\nsys.exit("
    words = [sys.executable, "-c", SUBMITTING.replace("sys.exit(", killed), "print('begun', flush=True)"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_a_signal_as_it_begins_is_not_ours_alone() -> None:
    told = (
        "import signal\nlet_go = submit.let_go\n"
        "submit.let_go = lambda process: (os.kill(os.getpid(), signal.SIGTERM), let_go(process))\nsys.exit("
    )
    words = [sys.executable, "-c", SUBMITTING.replace("sys.exit(", told), "print('begun', flush=True)"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "")


def test_kill_minus_nine_takes_spark_submit_along(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SUBMITTING, "print('ready', flush=True); import signal; signal.pause()"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    finally:
        process.kill()
    assert process.communicate(timeout=300)[0] == ""  # the pipe ends when the last process that has it ends

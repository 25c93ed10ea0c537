"""The command line as a newcomer meets it: help, exit codes, values, JSON."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from downspout import errors
from downspout.audit import EXIT_CODES as FOUND
from downspout.cli import build_parser, main
from downspout.cli.arguments import EXIT_CODES

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("command", [[], ["kafka"], ["storm"], ["spark"], ["dlq"], ["offsets"]])
def test_a_command_without_an_action_prints_its_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Typing too little is answered by what there is to type, on standard output and without an error."""
    assert main(command) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"usage: {' '.join(['downspout', *command])}")
    assert said.err == ""


def test_each_exit_code_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The help of the program names the code of every kind of error, and that of a run each with which it may end."""
    main([])
    shown = set(map(int, re.findall(r"(\d+) [A-Za-z]", " ".join(capsys.readouterr().out.split()))))
    kinds = [errors.DownspoutError, *errors.DownspoutError.__subclasses__()]
    assert {kind.exit_code for kind in kinds if kind.__module__ == errors.__name__} | set(EXIT_CODES) <= shown
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    for code in (0, 1, 2, 3, 4, 5, 6, 7, 8, 130, 141, 143):
        assert re.search(rf"[:;] {code} [a-z]", told), code


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._subparsers._group_actions if parser._subparsers else ():
        for command in dict.fromkeys(action.choices.values()):
            yield from parsers(command)


ALL = list(parsers(build_parser()))


@pytest.mark.parametrize("parser", ALL, ids=lambda parser: parser.prog)
def test_the_help_of_each_command_ends_with_its_exit_codes(parser: argparse.ArgumentParser) -> None:
    """Each names the codes that all have, and 4 where it asks Kafka; one with actions says where they are."""
    said = " ".join(parser.format_help().split())
    if parser._subparsers and parser.prog != "downspout":
        assert said.endswith(f"`{parser.prog} ACTION --help` lists the exit codes.")
        return
    codes = {int(code) for code in re.findall(r"[:;] (\d+) ", said.partition("Exit codes")[2])}
    assert {0, 1, 2, 3, 130, 141} <= codes
    asks_kafka = "--bootstrap" in parser._option_string_actions or parser.prog.startswith("downspout kafka ")
    assert 4 in codes or not asks_kafka
    assert 9 in codes or not parser.prog.startswith("downspout storm ")
    assert codes <= EXIT_CODES.keys() | FOUND.values()


def test_check_shows_what_was_given_and_all_the_rest_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    """Without an option only values that somebody gave are listed; --all adds the defaults."""
    target = str(ROOT / "topologies" / "word_count.py")
    assert main(["check", target]) == 0
    given = capsys.readouterr().out
    assert main(["check", target, "--all"]) == 0
    everything = capsys.readouterr().out
    assert "kafka.topics = ['lines']  (component)" in given
    assert "(default)" not in given
    assert "kafka.poll_timeout_ms = 200  (default)" in everything


@pytest.mark.parametrize(
    ("line", "usage", "said"),
    [
        ("run t.py --untill end", "downspout run", "downspout run: error: unknown option --untill. Try: --until"),
        ("run --untill=end", "downspout run", "unknown option --untill. Try: --until"),
        ("run t.py --frobnicate 3", "downspout run", "unknown option --frobnicate. Try: downspout run --help"),
        ("run t.py u.py", "downspout run", "unrecognized arguments: u.py. Try: downspout run --help"),
        ("run", "downspout run", "the following arguments are required: FILE"),
        ("spark run t.py --record-per-batch 5", "downspout spark run", "--record-per-batch. Try: --records-per-batch"),
        ("spark run t.py --records-per-batch 0", "downspout spark run", "'0' is not a whole number from 1 to"),
        ("simulate t.py --seeds 0", "downspout simulate", "argument --seeds: '0' is not a whole number from 1 to"),
        ("runn t.py", "downspout run", "downspout: error: unknown command runn. Try: downspout run"),
        ("kafka strat", "downspout kafka start", "unknown command strat. Try: downspout kafka start"),
        ("kafka frobnicate", "downspout kafka", "unknown command frobnicate. Try: one of start, status, stop,"),
    ],
)
def test_a_misspelt_word_is_answered_by_what_was_meant(
    line: str, usage: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The usage is that of the command that was meant, and the nearest option or command stands behind "Try"."""
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"usage: {usage} [-h]")
    assert said in printed


def test_spark_run_says_which_extra_it_lacks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it looks at the topology: without PySpark none can run."""
    for name in ("pyspark", "py4j"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["spark", "run", "nosuch.py"]) == 3
    assert "PySpark is not installed. Try: pip install 'downspout[spark]'" in capsys.readouterr().err


def test_a_missing_scenario_file_is_not_called_a_topology(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "nosuch/nosuch.py", "--jobs", "1"]) == 2
    assert "nosuch/nosuch.py does not exist. Try: the path of a scenario's .py file" in capsys.readouterr().err


def test_words_that_another_program_reads_are_left_alone() -> None:
    """Words behind -- are no options, nor are those that ``spark submit`` hands on; options may be shortened."""
    parse = build_parser().parse_args
    assert parse(["spark", "submit", "t.py", "--", "--conf", "x"]).arguments == ["t.py", "--", "--conf", "x"]
    assert parse(["run", "t.py", "--unt", "end", "--set=kafka.group=g"]).until == "end"
    assert parse(["run", "--", "--x.py"]).target == "--x.py"


@pytest.mark.parametrize(
    "command", [["run", "nowhere.py", "--json", "-"], ["audit", "nowhere", "--json"], ["compact", "nowhere", "--json"]]
)
def test_json_tells_of_an_error_too(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that was asked for JSON and fails prints the error as an object, with its exit code and cure."""
    monkeypatch.chdir(tmp_path)
    code = main(command)
    said = capsys.readouterr()
    error = json.loads(said.out)["error"]
    assert error["exit_code"] == code != 0
    assert error["message"] in said.err
    assert {"type", "cure"} <= error.keys()

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from downspout.cli import build_parser, main
from downspout.cli.completion import SHELLS, paths, settings, topology_files

ASK = """
source <(downspout completion bash)
COMP_LINE="$1" COMP_POINT=${#1}
read -ra COMP_WORDS <<< "$1"
[[ "$1" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_python_argcomplete downspout "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
"""What bash does at TAB, without a terminal."""


def at_tab(line: str, folder: Path) -> set[str]:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", ASK, "bash", line],
        cwd=folder, env={**os.environ, "PATH": programs}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return {text.strip() for text in done.stdout.splitlines()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "offered", "missing"),
    [
        ("downspout dl", {"dlq"}, {"run"}),
        ("downspout kafka st", {"start", "stop"}, {"topics"}),
        ("downspout run ", {"topologies/orders.py", "--until"}, {"topologies/__init__.py"}),
        ("downspout run topologies/orders.py --until ", {"end"}, set()),
        ("downspout run topologies/orders.py --set kafka.emit=", {"record", "chunk"}, set()),
        ("downspout run topologies/orders.py --set parquet.fl", {"parquet.flush_rows="}, {"kafka.emit="}),
        ("downspout audit out --topology t", {"topologies/"}, set()),
        ("downspout settings pa", {"parquet", "parse"}, {"kafka"}),
        ("downspout settings kafka.ret", {"kafka.retry_delay_ms"}, {"kafka.group", "kafka"}),
        ("downspout settings batch.", {"batch.store"}, {"batch", "kafka.group"}),
        ("downspout lag ", {"--watch"}, {"topologies/"}),
        ("downspout dlq show orders.dead-letters ", {"--json"}, {"topologies/"}),
        ("downspout storm stats t", set(), {"topologies/"}),
        ("downspout run topologies/orders.py --json t", {"topologies/"}, set()),
        ("downspout audit t", {"topologies/"}, set()),
        ("downspout kafka produce lines topologies/o", {"topologies/orders.py"}, set()),
        ("downspout storm shell -- t", {"topologies/"}, set()),
    ],
)
def test_bash_completes_a_line(line: str, offered: set[str], missing: set[str], tmp_path: Path) -> None:
    """Real bash offers commands, options, topologies, settings and their values."""
    (tmp_path / "topologies").mkdir()
    for name in ("orders.py", "__init__.py"):
        (tmp_path / "topologies" / name).touch()
    found = at_tab(line, tmp_path)
    assert offered <= found
    assert not missing & found


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The script of a shell names the command; where the shell is installed, it can read the script."""
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out, encoding="utf-8")
    assert "downspout" in script.read_text(encoding="utf-8")
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n", str(script)], check=True, timeout=60)


def test_without_argcomplete_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the library is missing, the command ends with 3 and says what to install, and a TAB runs nothing."""
    for name in ("argcomplete", "argcomplete.shell_integration"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["completion", "bash"]) == 3
    assert "pip install 'downspout[completion]'" in capsys.readouterr().err
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    with pytest.raises(SystemExit, match="1"):
        main(["settings"])
    assert not capsys.readouterr().out


def test_settings_of_a_component_are_completed_too() -> None:
    """A component in front stays in front; what has no fixed values offers none."""
    assert settings("rows:parquet.re") == ["rows:parquet.rebuild="]
    assert settings("spout:kafka.emit_null=") == ["spout:kafka.emit_null=yes", "spout:kafka.emit_null=no"]
    assert settings("kafka.topics=") == settings("nothing=") == []


def test_files_are_completed_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the beginning of a path, folders and Python files are offered."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep").mkdir()
    for name in ("deep/a.py", "deep/b.txt", "d.py"):
        (tmp_path / name).touch()
    assert topology_files("d") == ["d.py", "deep/"]
    assert topology_files("deep/") == ["deep/a.py"]
    assert paths("deep/b") == ["deep/b.txt"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths("~/de") == ["~/deep/"]


def test_bash_itself_adds_no_files(capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing fits, bash does not fall back on the files of the folder."""
    assert main(["completion", "bash"]) == 0
    assert "-o default" not in capsys.readouterr().out


def test_no_command_has_an_argument_of_another_kind_under_a_known_name() -> None:
    """What is completed by its name is what the name says: each `target` is a topology's file, each `scope` a scope."""
    from downspout.cli.completion import actions_of

    for action in actions_of(build_parser()):
        if action.dest in ("target", "overrides", "scope"):
            assert action.metavar in ("FILE", "FILE[:NAME]", "[COMPONENT:]KEY=VALUE", "KEY=VALUE", None), action

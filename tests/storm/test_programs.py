"""Our ``lein`` and ``storm`` answer streamparse's calls, without a JVM."""

from __future__ import annotations

import json
import os
import re
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from downspout.errors import ConfigError, StormError
from downspout.settings import folders, with_secrets
from downspout.sink.sink_bolt import directory_of
from downspout.storm import StormNode, lein, local, nimbus, node_logs, program, sparse
from downspout.storm.program import environment
from downspout.system import jars

QUICKSTART = """\
(defproject quick "0.0.1-SNAPSHOT"
  :resource-paths ["_resources"]
  :target-path "_build" ; where jars go ; "not this"
  :dependencies  [[org.apache.storm/storm-core "1.1.0"]
                  [org.apache.storm/flux-core "1.1.0" :exclusions [a/b]]
                  [org.example/other "2.0"]]
  :jar-exclusions [#"log4j\\\\.properties" #"META-INF"])
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in the working directory, with the files that streamparse has prepared for a jar."""
    (tmp_path / "project.clj").write_text(QUICKSTART, encoding="utf-8")
    code = tmp_path / "_resources" / "resources" / "bolts"
    (code / "__pycache__").mkdir(parents=True)
    (code / "split.py").write_text("x = 1\n", encoding="utf-8")
    (code / "__pycache__" / "split.cpython-311.pyc").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_tree_names_one_storm_the_one_that_is_there(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """streamparse finds exactly one storm-core in the tree, equal to what `storm version` prints."""
    assert lein.main(["deps", ":tree"]) == 0
    tree = capsys.readouterr()
    assert re.findall(r'\[org\.apache\.storm/storm-core "([^"]+)"\]', tree.out) == [jars.STORM_VERSION]
    assert program.main(["version"]) == 0
    assert re.findall(r"Storm ([0-9.]+)", capsys.readouterr().out) == [jars.STORM_VERSION]
    assert "storm-core 1.1.0" in tree.err
    assert "org.example/other 2.0" in tree.err


@pytest.mark.parametrize(("task", "suffix"), [("jar", ""), ("uberjar", "-standalone")])
def test_a_jar_holds_the_resources_and_is_the_same_each_time(
    project: Path, capsys: pytest.CaptureFixture[str], task: str, suffix: str
) -> None:
    """The last line names the jar as streamparse looks for it; it holds the Python files, without caches."""
    assert lein.main([task]) == 0
    path = Path(capsys.readouterr().out.strip().removeprefix("Created "))
    assert path == project / "_build" / f"quick-0.0.1-SNAPSHOT{suffix}.jar"
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["META-INF/MANIFEST.MF", "resources/bolts/split.py"]
    first = path.read_bytes()
    assert lein.main([task]) == 0
    assert path.read_bytes() == first


def test_clean_removes_what_was_built_and_nothing_else(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`lein clean` removes the target, and repeats the warnings, because streamparse hides those of other tasks."""
    lein.main(["jar"])
    assert lein.main(["clean"]) == 0
    assert not (project / "_build").exists()
    assert (project / "_resources").exists()
    assert "storm-core 1.1.0" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["..", "/tmp", "."])
def test_a_target_outside_of_the_project_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    """A project file cannot make `lein clean` remove what is not below the project."""
    (project / "project.clj").write_text(f'(defproject p "1" :target-path "{target}")', encoding="utf-8")
    assert lein.main(["clean"]) == StormError.exit_code
    assert "outside" in capsys.readouterr().err
    assert (project / "project.clj").exists()


def test_other_tasks_and_missing_projects_are_errors(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What only the real Leiningen can do is refused with what this one can; so is a folder without a project."""
    assert lein.main(["repl"]) == StormError.exit_code
    assert "uberjar" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert lein.main(["jar"]) == StormError.exit_code
    assert "project.clj" in capsys.readouterr().err


def test_a_project_file_is_read_through_comments_and_options() -> None:
    """Comments, exclusions and unusual spacing do not hide a dependency or invent one."""
    found = lein.parse_project(QUICKSTART)
    assert found.target == "_build"
    assert found.dependencies == {
        "org.apache.storm/storm-core": "1.1.0",
        "org.apache.storm/flux-core": "1.1.0",
        "org.example/other": "2.0",
    }
    assert lein.parse_project('(defproject a/b "1" :dependencies [])').name == "b"


def test_a_local_run_is_told_from_a_submit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`storm jar … Flux --local` runs locally, for streamparse's time or the longest there is; it never submits."""
    calls: list[int] = []
    monkeypatch.setattr(local, "run", lambda jar, main, arguments, seconds: calls.append(seconds) or 0)
    for value in ("12", "9223372036854775807"):
        assert program.main(["jar", "x.jar", program.FLUX, "--local", "--no-splash", "--sleep", value, "x.yaml"]) == 0
    assert calls == [12, local.SLEEP_S_MAX]
    assert local.SLEEP_S_MAX * 1000 <= 2**63 - 1


@pytest.mark.parametrize("arguments", [["jar", "x.jar", program.FLUX, "--remote", "x.yaml"], ["list"], ["kill", "t"]])
def test_without_storm_the_error_says_so(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """A submit, list or kill without a running Storm names the state and the cure, and no traceback."""
    assert program.main(arguments) == StormError.exit_code
    assert "Storm is stopped" in (said := capsys.readouterr().err)
    assert "downspout storm start" in said


@pytest.mark.parametrize("command", ["submit", "list", "kill"])
def test_sparse_without_storm_says_so(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """In our environment `sparse submit` without a running Storm ends with the state and the cure, not a traceback."""
    assert sparse.main([command, "-n", "t"]) == StormError.exit_code
    said = capsys.readouterr().err
    assert "Storm is stopped" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kill", "-n", "nothing"], "There is no topology nothing. Try: `sparse list`"),
        (["kill", "--name=nothing", "--wait", "5"], "There is no topology nothing"),
        (["submit", "-n", "words"], "words is running already (ACTIVE). Try: `sparse kill -n words` first"),
        (["submit", "-n", "other", "-N", "words"], "words is running already"),
        (["kill", "-n", "words", "--wait", "5"], ""),
        (["submit", "-n", "words", "--force"], ""),
        (["submit", "-n", "new"], ""),
        (["kill"], ""),
        (["list"], ""),
    ],
)
def test_sparse_says_what_runs_before_streamparse_fails_at_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    """To kill what does not run, or to submit what does, ends with a sentence; streamparse's answer is a traceback."""
    node = SimpleNamespace(status=lambda: SimpleNamespace(state="running", nimbus=""), address=("127.0.0.1", 1))
    running = SimpleNamespace(topologies=[SimpleNamespace(name="words", status="ACTIVE")])
    monkeypatch.delenv("STREAMPARSE_NIMBUS", raising=False)
    monkeypatch.setattr(sparse, "StormNode", lambda directory: node)
    monkeypatch.setattr(nimbus, "summary", lambda host, port: running)
    calls: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: calls.append(arguments))
    monkeypatch.setattr(sparse, "adapted", list)
    code = sparse.main(words)
    assert (code, calls != []) == ((StormError.exit_code, False) if said else (None, True))
    assert said in capsys.readouterr().err


def test_sparse_gets_out_of_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that need no cluster, and calls for help, reach the real program as they are."""
    calls: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: calls.append(arguments))
    for arguments in (["run", "-n", "t"], ["submit", "--help"], ["quickstart", "x"], []):
        sparse.main(arguments)
    assert [call[1:] for call in calls] == [["run", "-n", "t"], ["submit", "--help"], ["quickstart", "x"], []]


def test_flux_gets_the_timeouts_that_local_mode_takes_away(tmp_path: Path) -> None:
    """The file for Flux says that tuples time out, unless the topology says something else."""
    for given, wanted in (("config: {a: 1}", "true"), ("config: {topology.enable.message.timeouts: false}", "false")):
        path = tmp_path / "x.yaml"
        path.write_text(f"name: t\n{given}\n", encoding="utf-8")
        local.with_timeouts(["--local", str(path)])
        assert f"topology.enable.message.timeouts: {wanted}" in path.read_text(encoding="utf-8")


def test_the_environment_has_all_that_streamparse_looks_for(tmp_path: Path) -> None:
    """The programs come first on the PATH and can be run; nimbus's port stays the same before Storm ever ran."""
    node = StormNode(tmp_path / "storm")
    found = environment(node, {"PATH": "/bin", "PYTHONPATH": "/x"})
    folder = Path(found["PATH"].split(os.pathsep)[0])
    assert {path.name for path in folder.iterdir()} == {"lein", "storm", "sparse"}
    assert all(os.access(path, os.X_OK) for path in folder.iterdir())
    assert found["PYTHONPATH"] == os.pathsep.join(["src", "/x"])
    assert environment(node)["STREAMPARSE_NIMBUS"] == found["STREAMPARSE_NIMBUS"]
    assert found["LEIN_ROOT"] == "1"


def test_the_python_traceback_is_found_among_javas() -> None:
    """The last Python traceback is taken out of Java's words, with what it was chained to."""
    java = (
        "java.lang.RuntimeException: org.apache.storm.multilang.NoOutputException: Pipe broken\n"
        'Serializer Exception:\n\nTraceback (most recent call last):\n  File "a.py", line 1, in <module>\n    x\n'
        "KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "b.py", line 2, in <module>\nModuleNotFoundError: No module\n'
        "\tat org.apache.storm.utils.ShellProcess.launch(ShellProcess.java:94)\n"
    )
    found = node_logs.python_part(java)
    assert found.startswith("Traceback")
    assert "KeyError: 1" in found
    assert found.endswith("ModuleNotFoundError: No module")
    assert node_logs.python_part("nothing of the kind") == ""


def test_secrets_are_looked_up_where_the_component_runs(tmp_path: Path) -> None:
    """`env:` and `file:` in properties of the client become the secret; what is missing is named, without a value."""
    (tmp_path / "secret").write_text("s3cret\n", encoding="utf-8")
    key = "kafka.client.sasl_plain_password"
    assert with_secrets({key: f"file:{tmp_path / 'secret'}"})[key] == "s3cret"
    assert with_secrets({key: "env:P"}, {"P": "x"})[key] == "x"
    with pytest.raises(ConfigError, match="P is not in the environment"):
        with_secrets({key: "env:P"}, {})
    with pytest.raises(ConfigError, match="cannot be read"):
        with_secrets({key: f"file:{tmp_path / 'none'}"})


def test_a_relative_directory_is_the_projects_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a worker a relative directory lies in the project that started Storm; where there is none it is an error."""
    on_storm = {"storm.cluster.mode": "distributed"}
    with pytest.raises(ConfigError, match="'out' is relative"):
        directory_of("out", on_storm)
    monkeypatch.setenv("DOWNSPOUT_PROJECT", str(tmp_path))
    assert directory_of("out", on_storm) == tmp_path / "out"
    assert folders.worker_environment(Path("x"))["DOWNSPOUT_PROJECT"] == str(Path.cwd() / "x")


def test_a_worker_does_not_inherit_another_storms_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that Storm itself reads stay behind; the folder of our state becomes absolute."""
    monkeypatch.setenv("STORM_CONF_DIR", "/elsewhere")
    monkeypatch.setenv("DOWNSPOUT_HOME", "state")
    found = folders.worker_environment(Path())
    assert "STORM_CONF_DIR" not in found
    assert found["DOWNSPOUT_HOME"] == str(Path.cwd() / "state")


BOX = {
    "topology_specs": "topologies/",
    "envs": {
        "prod": {
            "user": "ubuntu", "nimbus": "streamparse-box", "workers": ["streamparse-box"],
            "virtualenv_root": "/data/envs",
            "options": {"topology.workers": 2},
        }
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "given", [[], ["--config", "other.json"], ["--config=other.json"], ["--conf", "other.json"], ["--conf=other.json"]]
)
def test_a_configuration_for_a_cluster_is_adapted_to_our_node(
    project: Path, monkeypatch: pytest.MonkeyPatch, given: list[str]
) -> None:
    """streamparse's own example is handed over without SSH and virtualenvs, and the project's file stays as it is."""
    monkeypatch.setenv("STREAMPARSE_NIMBUS", "127.0.0.1:6627")
    path = project / ("other.json" if given else "config.json")
    path.write_text(text := json.dumps(BOX), encoding="utf-8")
    command, option, made, *rest = sparse.adapted(["submit", "-n", "quick", *given])
    assert (command, option, rest) == ("submit", "--config", ["-n", "quick"])
    env = json.loads(Path(made).read_text(encoding="utf-8"))["envs"]["prod"]
    assert env["use_ssh_for_nimbus"] is False
    assert env["workers"] == ["127.0.0.1"]
    assert env["options"] == {"topology.workers": 2, "use_virtualenv": False, "install_virtualenv": False}
    assert path.read_text(encoding="utf-8") == text
    fits = ["submit", "--config", made]
    assert sparse.adapted(fits) == fits  # what fits is left alone
    monkeypatch.setenv("STREAMPARSE_NIMBUS", "storm.example.org:6627")
    assert sparse.adapted(["submit", *given]) == ["submit", *given]  # and so is what is for another Storm


@pytest.mark.parametrize("command", sorted(sparse.INSTEAD))
def test_a_command_that_needs_the_ui_or_ssh_says_what_to_use(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Where our node is meant, such a command is one line with its replacement; for another Storm it is passed on."""
    monkeypatch.setenv("STREAMPARSE_NIMBUS", "127.0.0.1:6627")
    assert sparse.main([command, "-n", "quick"]) == StormError.exit_code
    assert f"Try: {sparse.INSTEAD[command]}" in capsys.readouterr().err
    sparse.check([command, "--help"])
    monkeypatch.setenv("STREAMPARSE_NIMBUS", "storm.example.org:6627")
    sparse.check([command])

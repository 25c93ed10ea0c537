from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import threading
from pathlib import Path

import pytest

from downspout import jars
from downspout.errors import DownspoutError, MissingExtraError
from downspout.spark.session import _prepare_environment

JARS = {"a-1.jar": b"first", "b-2.jar": b"second"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    monkeypatch.setenv("DOWNSPOUT_CACHE", str(tmp_path))
    return tmp_path


def _program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def _fill(folder: Path) -> None:
    folder.mkdir(parents=True)
    entries = []
    for name, data in JARS.items():
        (folder / name).write_bytes(data)
        entries.append({"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    (folder / jars.MANIFEST).write_text(json.dumps({"jars": entries}), encoding="utf-8")


@pytest.fixture
def ivy(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Ivy and Java replaced by a function that writes the jars; the list holds one entry per run of it."""
    runs: list[Path] = []

    def run(jar_set: jars.JarSet, work: Path, ivy_cache: Path, ivy: Path, program: Path) -> None:
        runs.append(work)
        for name, data in JARS.items():
            (work / name).write_bytes(data)

    monkeypatch.setattr(jars, "_run_ivy", run)
    monkeypatch.setattr(jars, "_ivy_jar", lambda: Path("ivy.jar"))
    monkeypatch.setattr(jars, "java", lambda: Path("java"))
    return runs


def test_a_whole_set_needs_neither_network_nor_java(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set that the cache has is served offline, with no Java and no PySpark."""
    _fill(jars.folder_of("kafka"))
    monkeypatch.setenv("DOWNSPOUT_OFFLINE", "1")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(jars, "_ivy_jar", lambda: pytest.fail("asked for Ivy"))
    assert [jar.name for jar in jars.resolve("kafka")] == list(JARS)
    assert jars.verify("kafka") == []


@pytest.mark.parametrize("damage", ["missing", "short", "manifest"])
def test_a_damaged_set_is_not_served(cache: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A jar that is missing or has another size, or a manifest that cannot be read, makes the set absent."""
    folder = jars.folder_of("kafka")
    _fill(folder)
    if damage == "missing":
        (folder / "a-1.jar").unlink()
    else:
        (folder / ("a-1.jar" if damage == "short" else jars.MANIFEST)).write_bytes(b"x")
    monkeypatch.setenv("DOWNSPOUT_OFFLINE", "1")
    with pytest.raises(DownspoutError, match="DOWNSPOUT_OFFLINE"):
        jars.resolve("kafka")


def test_verify_finds_a_changed_jar_of_the_same_size(cache: Path) -> None:
    """The hash tells a jar that was exchanged from the one that was fetched."""
    _fill(jars.folder_of("kafka"))
    (jars.folder_of("kafka") / "b-2.jar").write_bytes(b"SECOND")
    (wrong,) = jars.verify("kafka")
    assert "b-2.jar" in wrong


def test_a_fetched_set_is_whole_and_fetched_once(cache: Path, ivy: list[Path]) -> None:
    """The first call fetches and says so once, the second finds everything, and nothing else is left behind."""
    said: list[str] = []
    first = jars.resolve("kafka", said.append)
    assert jars.resolve("kafka", said.append) == first
    assert [jar.read_bytes() for jar in first] == list(JARS.values())
    assert (len(ivy), len(said)) == (1, 1)
    assert jars.verify("kafka") == []
    folder = jars.folder_of("kafka")
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, f"{folder.name}.lock"}


def test_a_damaged_set_is_fetched_again(cache: Path, ivy: list[Path]) -> None:
    """A set that lost a jar is replaced as a whole."""
    jars.resolve("kafka")
    (jars.folder_of("kafka") / "a-1.jar").unlink()
    assert all(jar.exists() for jar in jars.resolve("kafka"))
    assert len(ivy) == 2


def test_a_failed_fetch_leaves_no_set(cache: Path, ivy: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """When Ivy fails half-way nothing appears in the cache, and the next call tries again."""

    def fail(jar_set: jars.JarSet, work: Path, *rest: Path) -> None:
        (work / "a-1.jar").write_bytes(b"half")
        raise DownspoutError("no network")

    with monkeypatch.context() as patch:
        patch.setattr(jars, "_run_ivy", fail)
        with pytest.raises(DownspoutError, match="no network"):
            jars.resolve("kafka")
    assert not jars.folder_of("kafka").exists()
    assert len(jars.resolve("kafka")) == 2


def test_two_at_a_time_fetch_once(cache: Path, ivy: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that need the set at the same moment one fetches, and the other waits and finds it."""
    inside, go_on = threading.Event(), threading.Event()
    write = jars._run_ivy

    def slowly(*arguments: object) -> None:
        inside.set()
        assert go_on.wait(30)
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(jars, "_run_ivy", slowly)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(jars.resolve("kafka")))) for _ in range(2)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert found == [2, 2]
    assert len(ivy) == 1


def test_an_unwritable_cache_is_named(tmp_path: Path, ivy: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cache cannot be written to, the error names it and DOWNSPOUT_CACHE."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("DOWNSPOUT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DownspoutError, match="DOWNSPOUT_CACHE"):
        jars.resolve("kafka")


def test_without_pyspark_the_extra_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark brings Ivy; without it the error says which extra to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"downspout\[spark\]"):
        jars.resolve("kafka")


def test_the_installed_pyspark_has_an_ivy() -> None:
    """The jar that resolves all others is where we look for it."""
    assert jars._ivy_jar().name.startswith("ivy-")


def test_a_failed_download_is_an_error_whatever_the_exit_code(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ivy may end with 0 after a failed download; its output decides, and is quoted."""
    program = _program(tmp_path / "bin" / "java", 'echo ":: FAILED DOWNLOADS ::"; echo "[FAILED ] x#y;1!y.jar"')
    monkeypatch.setattr(jars, "java", lambda: program)
    with pytest.raises(DownspoutError, match=r"x#y;1!y\.jar"):
        jars.resolve("kafka")
    assert not jars.folder_of("kafka").exists()


def test_without_java_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java at all: the error names the package and JAVA_HOME."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match=r"openjdk-17-jre-headless.*JAVA_HOME"):
        jars.java()


def test_an_old_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME comes first unless it is too old, by its release file or by what it prints."""
    old = _program(tmp_path / "old" / "bin" / "java", "exit 1")
    (tmp_path / "old" / "release").write_text('JAVA_VERSION="11.0.2"\n', encoding="utf-8")
    new = _program(tmp_path / "new" / "bin" / "java", "echo 'openjdk version \"21.0.1\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    monkeypatch.setenv("PATH", f"{new.parent}:/usr/bin:/bin")
    assert jars.java() == new
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match="version 11"):
        jars.java()


def test_a_java_home_without_java_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where JAVA_HOME has no Java, the one on the PATH is used, and a warning names both, once."""
    java = _program(tmp_path / "bin" / "java", "echo 'openjdk version \"21.0.1\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nonsense"))
    monkeypatch.setenv("PATH", f"{java.parent}:/usr/bin:/bin")
    assert [jars.java(), jars.java()] == [java, java]
    (warned,) = caplog.messages
    assert warned.startswith(f"JAVA_HOME = {tmp_path}/nonsense: ")
    assert "is no working Java" in warned
    assert warned.endswith(f"{java} is used")


def test_a_java_home_without_java_is_kept_from_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where JAVA_HOME has no Java, Spark is not told of it: it takes the one on the PATH, as we do."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\n", encoding="utf-8")
    java.chmod(0o755)
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("PATH", f"{java.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    _prepare_environment()
    assert os.environ["JAVA_HOME"] == str(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nonsense"))
    _prepare_environment()
    assert "JAVA_HOME" not in os.environ

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import threading
from pathlib import Path

import pytest

from docs.jars import request, settings
from downspout.errors import DownspoutError, MissingExtraError
from downspout.system import jars
from tests.kafka.programs import program

JARS = {"a-1.jar": b"first", "b-2.jar": b"second"}


def _pins(contents: dict[str, bytes]) -> tuple[jars.Jar, ...]:
    found = []
    for name, data in contents.items():
        module, _, version = name.removesuffix(".jar").partition("-")
        found.append(jars.Jar(f"org.{module}", module, version, "", len(data), hashlib.sha256(data).hexdigest()))
    return tuple(found)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own, and a set of two jars."""
    monkeypatch.setenv("DOWNSPOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "pinned", lambda name: _pins(JARS))
    return tmp_path / "cache"


def _fill(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, data in JARS.items():
        (folder / name).write_bytes(data)


class Writer(jars.Way):
    """Fetches by writing; ``runs`` holds one entry per fetch."""

    name = "Writer"

    def __init__(self, contents: dict[str, bytes] = JARS) -> None:
        self.contents = contents
        self.runs: list[Path] = []

    def fetch(self, jars: object, work: Path, scratch: Path) -> None:
        self.runs.append(work)
        for name, data in self.contents.items():
            (work / name).write_bytes(data)


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Writer:
    way = Writer()
    monkeypatch.setattr(jars, "ways_to_fetch", lambda java: [way])
    return way


def test_a_whole_set_needs_neither_network_nor_java(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set that the cache has is served offline, with no Java and nothing to fetch with."""
    _fill(jars.folder_of("kafka"))
    monkeypatch.setenv("DOWNSPOUT_OFFLINE", "1")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(jars, "ways_to_fetch", lambda java: pytest.fail("asked for a way to fetch"))
    assert [jar.name for jar in jars.resolve("kafka")] == list(JARS)
    assert jars.verify("kafka") == []


def test_a_set_that_lost_a_jar_is_not_served(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A jar that is missing makes the set absent, and offline the error names the way out."""
    _fill(jars.folder_of("kafka"))
    (jars.folder_of("kafka") / "a-1.jar").unlink()
    monkeypatch.setenv("DOWNSPOUT_OFFLINE", "1")
    with pytest.raises(DownspoutError, match="DOWNSPOUT_OFFLINE"):
        jars.resolve("kafka")


@pytest.mark.parametrize("data", [b"SECOND", b"sec", b""])
def test_a_changed_jar_in_the_cache_is_an_error(cache: Path, writer: Writer, data: bytes) -> None:
    """A jar that is not the pinned one is named with both hashes, and nothing of the set is used or fetched."""
    _fill(jars.folder_of("kafka"))
    (jars.folder_of("kafka") / "b-2.jar").write_bytes(data)
    expected, found = hashlib.sha256(b"second").hexdigest(), hashlib.sha256(data).hexdigest()
    with pytest.raises(DownspoutError, match=rf"b-2\.jar: SHA-256 {expected} is expected, found is {found}"):
        jars.resolve("kafka")
    assert writer.runs == []


def test_a_foreign_jar_in_the_cache_is_an_error(cache: Path) -> None:
    """A jar beside those of the set would be on the classpath: it is refused by name."""
    _fill(jars.folder_of("kafka"))
    (jars.folder_of("kafka") / "c-3.jar").write_bytes(b"foreign")
    with pytest.raises(DownspoutError, match=r"c-3\.jar does not belong"):
        jars.resolve("kafka")


def test_another_jar_from_the_network_is_an_error(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetched jar with another content is named with both hashes, no other way is tried, and nothing is kept."""
    bad, good = Writer({**JARS, "a-1.jar": b"forged"}), Writer()
    monkeypatch.setattr(jars, "ways_to_fetch", lambda java: [bad, good])
    expected, found = hashlib.sha256(b"first").hexdigest(), hashlib.sha256(b"forged").hexdigest()
    with pytest.raises(DownspoutError, match=rf"a-1\.jar: SHA-256 {expected} is expected, found is {found}"):
        jars.resolve("kafka", lambda line: None)
    assert good.runs == []
    assert [path.suffix for path in (cache / "jars").iterdir()] == [".lock"]


def test_a_fetched_set_is_whole_and_fetched_once(cache: Path, writer: Writer) -> None:
    """The first call fetches and says so once, the second finds everything, and nothing else is left behind."""
    said: list[str] = []
    first = jars.resolve("kafka", said.append)
    assert jars.resolve("kafka", said.append) == first
    assert [jar.read_bytes() for jar in first] == list(JARS.values())
    assert (len(writer.runs), len(said)) == (1, 1)
    folder = jars.folder_of("kafka")
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, f"{folder.name}.lock"}


def test_a_set_that_lost_a_jar_is_fetched_again(cache: Path, writer: Writer) -> None:
    jars.resolve("kafka")
    (jars.folder_of("kafka") / "a-1.jar").unlink()
    assert all(jar.exists() for jar in jars.resolve("kafka"))
    assert len(writer.runs) == 2


def test_a_failed_fetch_leaves_no_set(cache: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the fetch fails half-way nothing appears in the cache, and the next call tries again."""

    def fail(self: Writer, jars: object, work: Path, scratch: Path) -> None:
        (work / "a-1.jar").write_bytes(b"first")
        raise DownspoutError("no network")

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "fetch", fail)
        with pytest.raises(DownspoutError, match="no network"):
            jars.resolve("kafka")
    assert not jars.folder_of("kafka").exists()
    assert len(jars.resolve("kafka")) == 2


def test_two_at_a_time_fetch_once(cache: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that need the set at the same moment one fetches, and the other waits and finds it."""
    inside, go_on = threading.Event(), threading.Event()
    write = Writer.fetch

    def slowly(self: Writer, jars: object, work: Path, scratch: Path) -> None:
        inside.set()
        assert go_on.wait(30)
        write(self, jars, work, scratch)

    monkeypatch.setattr(Writer, "fetch", slowly)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(jars.resolve("kafka")))) for _ in range(2)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert found == [2, 2]
    assert len(writer.runs) == 1


def test_an_unwritable_cache_is_named(
    cache: Path, tmp_path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the cache cannot be written to, the error names it and DOWNSPOUT_CACHE."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("DOWNSPOUT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DownspoutError, match="DOWNSPOUT_CACHE"):
        jars.resolve("kafka")


# --- what fetches ---


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java that is nothing else's, and a PATH on which there is no mvn."""
    found = program(tmp_path / "jdk" / "bin" / "java", "exit 0")
    monkeypatch.setattr(jars, "java", lambda: found)
    monkeypatch.setattr(jars, "IVY_JARS", ())
    monkeypatch.setenv("PATH", "/nowhere")
    return found


def test_with_nothing_to_fetch_with_the_extra_is_named(
    cache: Path, java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Maven, Ivy and PySpark the error says which extra to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"downspout\[broker\]"):
        jars.resolve("kafka")


def test_maven_comes_first_then_the_machines_ivy_then_pysparks(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the machine's owner has set up is asked before what PySpark ships, which is found where it is installed."""
    mvn = program(tmp_path / "bin" / "mvn", "exit 0")
    (tmp_path / "ivy.jar").touch()
    monkeypatch.setattr(jars, "IVY_JARS", (str(tmp_path / "ivy.jar"),))
    monkeypatch.setenv("PATH", str(mvn.parent))
    first, second, third = [way.name for way in jars.ways_to_fetch(lambda: java)]
    assert (first, second) == (f"Maven ({mvn})", f"Ivy ({tmp_path / 'ivy.jar'})")
    assert "pyspark/jars/ivy-" in third


def test_maven_gets_our_java_and_asks_for_the_pinned_jars_alone(
    cache: Path, java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maven is given each jar by its coordinates, without what it needs in turn, and the Java that all else runs on."""
    seen = tmp_path / "seen"
    text = f"""
for word do case "$word" in -DoutputDirectory=*) out=${{word#*=}};; *pom.xml) cp "$word" {seen}.xml;; esac; done
echo "$JAVA_HOME" > {seen}
printf first > "$out/a-1.jar"; printf second > "$out/b-2.jar"
"""
    mvn = program(tmp_path / "bin" / "mvn", text)
    monkeypatch.setenv("PATH", f"{mvn.parent}:{os.defpath}")
    assert len(jars.resolve("kafka", lambda line: None)) == 2
    assert seen.read_text().strip() == str(java.parent.parent)
    asked = seen.with_suffix(".xml").read_text()
    assert "<groupId>org.a</groupId><artifactId>a</artifactId><version>1</version>" in asked
    assert (asked.count("<artifactItem>"), asked.count("<dependency>")) == (2, 0)


def test_where_maven_fails_ivy_is_asked(
    cache: Path, java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Maven that cannot fetch is passed over and said; where nothing can, the error has the reason of each."""
    mvn = program(tmp_path / "bin" / "mvn", "echo '[ERROR] no route: to host'; exit 1")
    program(java, 'echo ":: FAILED DOWNLOADS ::"; echo "[FAILED ] x#y;1!y.jar"')
    monkeypatch.setenv("PATH", f"{mvn.parent}:{os.defpath}")
    said: list[str] = []
    with pytest.raises(DownspoutError, match=r"(?s)Maven .*no route.*Ivy .*x#y;1!y\.jar"):
        jars.resolve("kafka", said.append)
    assert any("could not fetch" in line for line in said)
    assert not jars.folder_of("kafka").exists()


# --- what is pinned ---


def test_every_set_is_pinned() -> None:
    """Each set names each jar once with a hash, its own modules among them and none that it leaves out."""
    for name, jar_set in jars.SETS.items():
        pins = jars.pinned(name)
        assert len({jar.name for jar in pins}) == len(pins)
        assert all(len(jar.sha256) == 64 and jar.size > 0 for jar in pins)
        assert set(jar_set.modules) <= {(jar.organisation, jar.module, jar.version) for jar in pins}
        assert not {jar.module for jar in pins} & set(jar_set.excluded)
    assert set(json.loads(jars.PINS.read_text(encoding="utf-8"))) == set(jars.SETS)


def test_a_jar_with_a_classifier_is_asked_for_and_named_by_it() -> None:
    """A module's second jar has its classifier in the name of the file, and in what Maven and Ivy are asked."""
    jar = jars.Jar("org.x", "native", "1.0", "linux-x86_64", 1, "00")
    assert jar.name == "native-1.0-linux-x86_64.jar"
    assert "<classifier>linux-x86_64</classifier>" in jars.pom([jar])
    assert 'm:classifier="linux-x86_64"' in jars.ivy_xml([jar])


def test_the_renewal_follows_poms_but_for_bare_modules() -> None:
    """What a set needs is found through poms, except where a pom was never published."""
    asked = jars.JarSet("x", (("org.x", "whole", "1"), ("org.x", "alone", "1")), bare=("alone",), excluded=("other",))
    assert '<dependency org="org.x" name="whole" rev="1" conf="default->default"/>' in request(asked)
    assert 'name="alone" rev="1" conf="default->default" transitive="false"' in request(asked)
    assert '<exclude module="other"/>' in request(asked)
    assert '<module organisation="org.x" name="alone" resolver="jars-only"/>' in settings(asked)

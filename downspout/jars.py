"""Jars by name: resolved once through the Ivy that PySpark ships, then served from the cache.

One set of jars (:data:`SETS`) is one folder in ``config.cache()``, beside it a manifest with the size and the SHA-256
of each jar. Whoever needs a set calls :func:`resolve`; where the folder is whole that touches no network and starts no
program. Ivy names no repository of ours: it asks the one that it is built with, and checks what it gets against the
checksums that are published there.

A folder appears at once and whole: Ivy works in a temporary folder beside it, whose files are flushed to the disk
before the rename. A lock keeps two processes from doing the same work. Ivy's own cache survives an interrupted
download, so that the next attempt continues, and is removed after a good one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from downspout import config
from downspout.errors import DownspoutError, MissingExtraError
from downspout.locks import FileLock

JAVA_MIN = 17
STORM_VERSION = "2.8.3"  # the newest of which all jars that a node needs are on Maven Central
RESOLVE_S_MAX = 900.0
MANIFEST = "manifest.json"

NO_JAVA_CURE = (
    "`apt-get install openjdk-17-jre-headless` (or any JDK of at least version 17), "
    "and JAVA_HOME where it is not on the PATH"
)


@dataclass(frozen=True)
class JarSet:
    """Jars that belong together.

    Attributes:
        name: of the set.
        modules: what to ask Ivy for, as organisation, module and version.
        bare: names of modules of which the jar alone is fetched: their pom is not looked at, nor what it asks for.
        excluded: names of modules that are left out, whoever asks for them.
    """

    name: str
    modules: tuple[tuple[str, str, str], ...]
    bare: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """The version of its first module, which stands for the set."""
        return self.modules[0][2]

    @property
    def folder(self) -> str:
        """The name of its folder in the cache; other versions make another name."""
        wanted: tuple[Any, ...] = self.modules
        if self.bare or self.excluded:
            wanted = (self.modules, self.bare, self.excluded)
        text = json.dumps(wanted)
        return f"{self.name}-{self.version}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


SETS: dict[str, JarSet] = {
    "kafka": JarSet(
        "kafka",
        (
            ("org.apache.kafka", "kafka_2.13", "4.3.1"),  # 4.4.0 is listed, but one of its jars is missing
            ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),  # Kafka brings no backend for its logs
        ),
    ),
    "storm": JarSet(
        "storm",
        (
            (
                "org.apache.storm",
                "storm-server",
                STORM_VERSION,
            ),  # nimbus, supervisor, LocalCluster; brings log4j's backend
            ("org.apache.storm", "storm-client", STORM_VERSION),
            ("org.apache.storm", "storm-core", STORM_VERSION),
            ("org.apache.storm", "flux-core", STORM_VERSION),
            ("org.apache.storm", "flux-wrappers", STORM_VERSION),
        ),
        bare=("flux-core", "flux-wrappers"),  # Flux's parent pom was never published; Storm itself has what Flux needs
        excluded=("storm-clojure", "slf4j-reload4j", "reload4j"),  # not on Central; and a second backend for the logs
    ),
    "storm-kafka": JarSet(
        "storm-kafka",
        (("org.apache.storm", "storm-kafka-client", STORM_VERSION), ("org.apache.kafka", "kafka-clients", "4.1.0")),
        bare=("storm-kafka-client",),
        excluded=("slf4j-api", "slf4j-reload4j", "reload4j"),  # Storm brings its own
    ),
    "spark-kafka": JarSet(
        "spark-kafka",
        # Spark's own connector, for comparison alone: of the 4.x versions only this one resolves whole.
        (("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.0.0"),),
    ),
}
"""All sets that the project uses: the broker, Storm, Storm's own KafkaSpout, and Spark's Kafka connector."""


def folder_of(name: str) -> Path:
    """Return where a set is, or will be."""
    return config.cache() / "jars" / SETS[name].folder


def resolve(name: str, progress: Callable[[str], None] | None = None) -> list[Path]:
    """Return the jars of a set, fetching them where the cache does not have them (about a minute, once).

    Args:
        name: a key of :data:`SETS`.
        progress: receives one line before a download; the default writes it to stderr.

    Raises:
        MissingExtraError: PySpark, which brings Ivy, or Java is missing and the cache does not have the set.
        DownspoutError: Ivy cannot fetch them, or ``DOWNSPOUT_OFFLINE=1`` and they are not in the cache.
    """
    jar_set = SETS[name]
    folder = folder_of(name)
    if (jars := _present(folder)) is not None:
        return jars
    if os.environ.get("DOWNSPOUT_OFFLINE", "") not in ("", "0"):
        raise DownspoutError(
            f"The jars of {name} are not in {folder}, and DOWNSPOUT_OFFLINE forbids fetching them",
            cure=f"run once without DOWNSPOUT_OFFLINE, or copy {folder} from a machine that has it",
        )
    ivy, program = _ivy_jar(), java()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.parent / f"{jar_set.folder}.lock")
        if not lock.acquire(RESOLVE_S_MAX):
            raise DownspoutError(
                f"Another process has been fetching the jars of {name} for {RESOLVE_S_MAX:g} s",
                cure=f"see what holds {lock.path}",
            )
    except OSError as error:
        raise _unwritable(folder.parent, error) from error
    try:
        if (jars := _present(folder)) is not None:  # the other process was first
            return jars
        (progress or _say)(f"fetching the jars of {name} {jar_set.version} through Ivy (once, about a minute) …")
        _fetch(jar_set, folder, ivy, program)
    except OSError as error:
        raise _unwritable(folder.parent, error) from error
    finally:
        lock.release()
    return _present(folder) or []


def verify(name: str) -> list[str]:
    """Hash every jar of a set in the cache and return what is wrong, one line each; nothing where all is well.

    >>> verify("kafka") if folder_of("kafka").exists() else []
    []
    """
    folder = folder_of(name)
    manifest = _manifest(folder)
    if manifest is None:
        return [f"{folder} has no manifest"]
    wrong: list[str] = []
    for entry in manifest:
        path = folder / str(entry["name"])
        if not path.is_file():
            wrong.append(f"{path} is missing")
        elif _sha256(path) != entry["sha256"]:
            wrong.append(f"{path} is not what was fetched")
    return wrong


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _unwritable(folder: Path, error: OSError) -> DownspoutError:
    return DownspoutError(
        f"Jars cannot be kept in {folder}: {error.strerror or error}",
        cure="set DOWNSPOUT_CACHE to a folder that can be written to and has 400 MB free",
    )


# --- the cache ---


def _manifest(folder: Path) -> list[dict[str, str | int]] | None:
    try:
        return list(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["jars"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _present(folder: Path) -> list[Path] | None:
    """Return the jars if the folder is whole by its manifest (names and sizes: one ``stat`` per jar), else None."""
    if (manifest := _manifest(folder)) is None:
        return None
    paths = [folder / str(entry["name"]) for entry in manifest]
    try:
        whole = all(path.stat().st_size == entry["size"] for path, entry in zip(paths, manifest, strict=True))
    except OSError:
        return None
    return paths if whole and paths else None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(jar_set: JarSet, folder: Path, ivy: Path, program: Path) -> None:
    """Fill ``folder``; the caller holds its lock, so that the names beside it are ours."""
    work = folder.with_name(f"{folder.name}.part")
    ivy_cache = folder.with_name(f"{folder.name}.ivy")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        _run_ivy(jar_set, work, ivy_cache, ivy, program)
        _write_manifest(jar_set, work)
        shutil.rmtree(folder, ignore_errors=True)  # what was there is not whole
        work.rename(folder)
        _fsync(folder.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(ivy_cache, ignore_errors=True)


def _write_manifest(jar_set: JarSet, work: Path) -> None:
    jars = sorted(work.glob("*.jar"))
    entries = [{"name": jar.name, "size": jar.stat().st_size, "sha256": _sha256(jar)} for jar in jars]
    text = json.dumps({"set": jar_set.name, "modules": jar_set.modules, "jars": entries}, indent=1)
    manifest = work / MANIFEST
    manifest.write_text(text + "\n", encoding="utf-8")
    for path in (*jars, manifest, work):
        _fsync(path)


def _fsync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


# --- Ivy ---


def _ivy_xml(jar_set: JarSet) -> str:
    """Return the Ivy file that asks for a set, with all that it needs at run time.

    >>> print(_ivy_xml(JarSet("x", (("org.example", "tool", "1.0"),))))
    <ivy-module version="2.0">
    <info organisation="downspout" module="x"/>
    <configurations><conf name="default"/></configurations>
    <dependencies>
    <dependency org="org.example" name="tool" rev="1.0" conf="default->default"/>
    </dependencies>
    </ivy-module>
    """
    # "default" of a Maven module is its own jar and all that it needs at run time; its "runtime" lacks the jar itself.
    wanted = [
        f'<dependency org={quoteattr(org)} name={quoteattr(name)} rev={quoteattr(revision)} conf="default->default"'
        + (' transitive="false"/>' if name in jar_set.bare else "/>")
        for org, name, revision in jar_set.modules
    ]
    wanted += [f"<exclude module={quoteattr(name)}/>" for name in jar_set.excluded]
    return "\n".join(
        [
            '<ivy-module version="2.0">',
            f'<info organisation="downspout" module={quoteattr(jar_set.name)}/>',
            '<configurations><conf name="default"/></configurations>',
            "<dependencies>",
            *wanted,
            "</dependencies>",
            "</ivy-module>",
        ]
    )


def _settings_xml(jar_set: JarSet) -> str:
    """Return Ivy's settings for a set with bare modules: a second view of Maven Central, one that reads no poms.

    >>> "usepoms" in _settings_xml(JarSet("x", (("org.example", "tool", "1.0"),), bare=("tool",)))
    True
    """
    bare = [
        f'<module organisation={quoteattr(org)} name={quoteattr(name)} resolver="jars-only"/>'
        for org, name, _ in jar_set.modules
        if name in jar_set.bare
    ]
    return "\n".join(
        [
            '<ivysettings><settings defaultResolver="central"/>',
            '<resolvers><ibiblio name="central" m2compatible="true"/>',
            '<ibiblio name="jars-only" m2compatible="true" usepoms="false"/></resolvers>',
            "<modules>",
            *bare,
            "</modules></ivysettings>",
        ]
    )


def _run_ivy(jar_set: JarSet, work: Path, ivy_cache: Path, ivy: Path, program: Path) -> None:
    request = work / "ivy.xml"
    request.write_text(_ivy_xml(jar_set), encoding="utf-8")
    pattern = f"{work}/[artifact]-[revision](-[classifier]).[ext]"
    command = [str(program), "-cp", str(ivy), "org.apache.ivy.Main", "-cache", str(ivy_cache), "-ivy", str(request)]
    command += ["-retrieve", pattern, "-types", "jar", "bundle"]
    if jar_set.bare:
        settings = work / "ivysettings.xml"
        settings.write_text(_settings_xml(jar_set), encoding="utf-8")
        command += ["-settings", str(settings)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=RESOLVE_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise _ivy_failed(jar_set, expired.stdout or b"", f"took more than {RESOLVE_S_MAX:g} s") from None
    for path in work.glob("ivy*.xml"):
        path.unlink()
    # Ivy's exit code is 0 for some failed downloads, and the retrieve has then left a jar out.
    if done.returncode != 0 or b"FAILED DOWNLOADS" in done.stdout or b"UNRESOLVED" in done.stdout:
        raise _ivy_failed(jar_set, done.stdout, f"exit code {done.returncode}")


def _ivy_failed(jar_set: JarSet, output: bytes, reason: str) -> DownspoutError:
    lines = output.decode(errors="replace").splitlines()
    telling = [line.strip() for line in lines if re.search(r"FAILED|UNRESOLVED|not found|Exception|refused", line)]
    detail = "; ".join((telling or [line for line in lines if line.strip()])[-5:])
    return DownspoutError(
        f"Ivy could not fetch the jars of {jar_set.name} ({reason}): {detail}",
        cure="check that this machine reaches Maven Central (a proxy goes into JAVA_TOOL_OPTIONS), then try again",
    )


def _ivy_jar() -> Path:
    """Return the Ivy jar of the installed PySpark."""
    spec = importlib.util.find_spec("pyspark")  # finds the folder without importing PySpark
    for place in (spec.submodule_search_locations or []) if spec else []:
        if found := sorted((Path(place) / "jars").glob("ivy-*.jar")):
            return found[-1]
    raise MissingExtraError(
        "Jars are fetched with the Ivy that PySpark ships, and PySpark is not installed",
        cure='`pip install "downspout[spark]"`',
    )


# --- Java ---


def java() -> Path:
    """Return a ``java`` of at least version 17: the one of JAVA_HOME, else the one on the PATH.

    Where JAVA_HOME is set and its Java is not the one, the log says so, once.

    Raises:
        MissingExtraError: there is none, or only older ones.
    """
    seen: list[str] = []
    candidates = [Path(home) / "bin" / "java"] if (home := os.environ.get("JAVA_HOME")) else []
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path))
    for candidate in candidates:
        if (version := _java_version(candidate)) is not None and version >= JAVA_MIN:
            if seen:
                _passed_over(f"JAVA_HOME = {home}: {seen[0]}, and {JAVA_MIN} or newer is needed; {candidate} is used")
            return candidate
        seen.append(f"{candidate} is " + ("no working Java" if version is None else f"version {version}"))
    if seen:
        raise MissingExtraError(f"Java {JAVA_MIN} or newer is needed, but {', '.join(seen)}", cure=NO_JAVA_CURE)
    raise MissingExtraError(f"Java {JAVA_MIN} or newer is needed, and there is no java on the PATH", cure=NO_JAVA_CURE)


@once
def _passed_over(text: str) -> None:
    logging.getLogger(__name__).warning("%s", text)


def _java_version(program: Path) -> int | None:
    """Return the feature version (8, 11, 17, …), or None where the program does not run."""
    try:
        release = program.resolve().parent.parent / "release"
        if release.is_file() and os.access(program, os.X_OK):  # says it without starting a JVM
            text = release.read_text(encoding="utf-8", errors="replace")
            if found := re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE):
                return parse_java_version(found[1])
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return parse_java_version(found[1]) if found and done.returncode == 0 else None


def parse_java_version(text: str) -> int | None:
    """Return the feature version in a version text.

    >>> parse_java_version("17.0.15"), parse_java_version("1.8.0_392"), parse_java_version("22-ea")
    (17, 8, 22)
    """
    found = re.match(r"(?:1\.)?(\d+)", text)
    return int(found[1]) if found else None

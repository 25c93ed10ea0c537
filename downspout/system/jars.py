"""Sets of jars: fetched once, checked against known hashes, then served from the cache.

Each set (:data:`SETS`) is one folder in ``folders.cache()``. Its content is listed in ``jars.json``, which is part of
the package: each jar's coordinates at Maven Central, its size and its SHA-256 (``make jars`` rewrites it).
:func:`resolve` returns a set, and hashes each jar, fetched or cached, before use. For a complete folder, it needs no
network and starts no program.

A folder appears atomically: jars are fetched into a temporary folder, synced, and renamed. A lock prevents two
processes from doing the same work.

**Fetching from Maven Central.** The first of these that works is used: the machine's Maven, then its Ivy, which know
the configured mirror and proxy; then the Ivy that PySpark ships. Only the listed jars are requested, by coordinates:
the list includes their dependencies. No address is named here; each program uses its own repository.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from downspout.errors import DownspoutError, MissingExtraError
from downspout.settings import folders
from downspout.system.files import FileLock, sync_folder
from downspout.system.java import home_of, java, trust_options
from downspout.system.waiting import Report, report_to_stderr, waiting

FETCH_S_MAX = 900.0
IVY_JARS = ("/usr/share/java/ivy.jar", "/usr/share/ant/lib/ivy.jar", "/usr/local/share/java/ivy.jar")
"""Paths of Ivy in packages of operating systems."""
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"


class Way(ABC):
    """A program that fetches jars."""

    name: str  # For messages

    @abstractmethod
    def fetch(self, jars: Sequence[Jar], work: Path, scratch: Path) -> None:
        """Fetch jars into a folder.

        ``scratch`` survives a failure, and the next attempt continues there.

        Raises:
            DownspoutError: it failed.
        """


class Maven(Way):
    """The machine's ``mvn``, with the user's settings and local repository."""

    def __init__(self, program: Path, java: Callable[[], Path]) -> None:
        self.name = f"Maven ({program})"
        self._program, self._java = program, java

    def fetch(self, jars: Sequence[Jar], work: Path, scratch: Path) -> None:
        """Fetch jars into a folder."""
        java = self._java()
        request = scratch / "pom.xml"
        request.write_text(pom(jars), encoding="utf-8")
        options = shlex.join(trust_options(java, scratch))
        environ = {
            **os.environ,
            "JAVA_HOME": str(home_of(java)),
            "MAVEN_OPTS": f"{os.environ.get('MAVEN_OPTS', '')} {options}".strip(),
        }
        words = [str(self._program), "--batch-mode", "--quiet", "--file", str(request), PLUGIN]
        _run(self.name, [*words, f"-DoutputDirectory={work}"], environ)


class Ivy(Way):
    """An Ivy: PySpark's, or the machine's own."""

    def __init__(self, jar: Path, java: Callable[[], Path]) -> None:
        self.name = f"Ivy ({jar})"
        self._jar, self._java = jar, java

    def fetch(self, jars: Sequence[Jar], work: Path, scratch: Path) -> None:
        """Fetch jars into a folder."""
        self.run(work, scratch, ivy_xml(jars), BARE_SETTINGS, "[artifact]-[revision](-[classifier]).[ext]")

    def run(self, work: Path, scratch: Path, request: str, settings: str, pattern: str) -> None:
        """Run Ivy on a request."""
        (scratch / "ivy.xml").write_text(request, encoding="utf-8")
        (scratch / "ivysettings.xml").write_text(settings, encoding="utf-8")
        java = self._java()
        words = [str(java), *trust_options(java, scratch), "-cp", str(self._jar), "org.apache.ivy.Main"]
        words += ["-cache", str(scratch / "cache"), "-ivy", str(scratch / "ivy.xml")]
        words += ["-settings", str(scratch / "ivysettings.xml")]
        words += ["-retrieve", f"{work}/{pattern}", "-types", "jar", "bundle"]
        said = _run(self.name, words, os.environ)
        # For some failed downloads, Ivy exits with 0 although a jar is missing.
        if "FAILED DOWNLOADS" in said or "UNRESOLVED" in said:
            raise _failed(self.name, said, "exit code 0")


def ways_to_fetch(java: Callable[[], Path]) -> list[Way]:
    """Return the programs on this machine that can fetch jars, best first."""
    java()  # all of them need it, and its error says what to install
    found: list[Way] = []
    if program := shutil.which("mvn"):
        found.append(Maven(Path(program), java))
    found += [Ivy(jar, java) for jar in ivy_jars()]
    if not found:
        raise MissingExtraError(
            "The jars of the broker and of Storm are fetched by Maven or Ivy, and neither was found: no mvn on the "
            "PATH, no Ivy, and no PySpark, which ships one",
            cure='`pip install "downspout[broker]"`',
        )
    return found


def ivy_jars() -> list[Path]:
    """Return the Ivy jars on this machine: those of its packages, and PySpark's."""
    found = [path for path in map(Path, IVY_JARS) if path.is_file()]
    spec = importlib.util.find_spec("pyspark")  # finds the folder without importing PySpark
    for place in (spec.submodule_search_locations or []) if spec else []:
        found += sorted((Path(place) / "jars").glob("ivy-*.jar"))[-1:]
    return found


def fetch(what: str, jars: Sequence[Jar], work: Path, scratch: Path, ways: Iterable[Way], progress: Report) -> str:
    """Fetch jars with the first program that works; return its name."""
    scratch.mkdir(exist_ok=True)
    reasons: list[str] = []
    for way in ways:
        try:
            with waiting(partial(_progress, way, what, jars, scratch), progress):
                way.fetch(jars, work, scratch)
        except DownspoutError as error:
            reasons.append(str(error.args[0]))
            progress(f"{way.name} could not fetch the jars of {what}")
            continue
        return way.name
    raise DownspoutError(
        f"The jars of {what} could not be fetched: {'; '.join(reasons)}",
        cure="check that this machine reaches Maven Central (a proxy goes into JAVA_TOOL_OPTIONS), then try again",
    )


def _progress(way: Way, what: str, jars: Sequence[Jar], scratch: Path) -> str:
    found = sum(1 for _ in (scratch / "cache").rglob("*.jar"))
    here = f", {found} of {len(jars)} are here" if found else ""
    return f"{way.name.partition(' (')[0]} fetches the jars of {what}{here}"


def _run(name: str, words: Sequence[str], environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            words,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=FETCH_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        said = (expired.stdout or b"").decode(errors="replace")
        raise _failed(name, said, f"took more than {FETCH_S_MAX:g} s") from None
    said = done.stdout.decode(errors="replace")
    if done.returncode:
        raise _failed(name, said, f"exit code {done.returncode}")
    return said


def _failed(name: str, output: str, reason: str) -> DownspoutError:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"FAILED|UNRESOLVED|not found|Exception|refused|ERROR.*:", line)]
    return DownspoutError(f"{name} failed ({reason}): {'; '.join((telling or lines)[-5:])[:1500]}")


# --- requests ---


def pom(jars: Sequence[Jar]) -> str:
    """Return a Maven project that copies these jars; as artifact items, not dependencies, so Maven reads no poms."""
    items = []
    for jar in jars:
        parts = {"groupId": jar.organisation, "artifactId": jar.module, "version": jar.version}
        parts |= {"classifier": jar.classifier} if jar.classifier else {}
        inside = "".join(f"<{key}>{escape(value)}</{key}>" for key, value in parts.items())
        items.append(f"<artifactItem>{inside}</artifactItem>")
    group, artifact, version, _ = PLUGIN.split(":")
    lines = [
        "<project><modelVersion>4.0.0</modelVersion>",
        "<groupId>downspout</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>",
        f"<build><plugins><plugin><groupId>{group}</groupId><artifactId>{artifact}</artifactId>",
        f"<version>{version}</version><configuration><artifactItems>",
        *items,
        "</artifactItems></configuration></plugin></plugins></build></project>",
    ]
    return "\n".join(lines) + "\n"


BARE_SETTINGS = """\
<ivysettings><settings defaultResolver="central"/><resolvers>
<ibiblio name="central" m2compatible="true" usepoms="false"/>
</resolvers></ivysettings>
"""
"""Ivy's settings for a complete list of jars: it reads no poms."""


def ivy_xml(jars: Sequence[Jar]) -> str:
    """Return the Ivy file that requests these jars without their dependencies."""
    head = '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
    head += '<info organisation="downspout" module="jars"/><configurations><conf name="default"/></configurations>'
    wanted = []
    for jar in jars:
        classifier = f" m:classifier={quoteattr(jar.classifier)}" if jar.classifier else ""
        wanted.append(
            f"<dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.module)} "
            f'rev={quoteattr(jar.version)} transitive="false" conf="default->default">'
            f'<artifact name={quoteattr(jar.module)} type="jar" ext="jar"{classifier}/></dependency>'
        )
    return "\n".join([head, "<dependencies>", *wanted, "</dependencies></ivy-module>\n"])


class Jar(NamedTuple):
    """One jar: its coordinates at Maven Central (the classifier is usually empty), size and hash."""

    organisation: str
    module: str
    version: str
    classifier: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """Its file name."""
        return "-".join(filter(None, (self.module, self.version, self.classifier))) + ".jar"


STORM_VERSION = "2.8.3"  # the newest whose jars for a node are all on Maven Central
LOCK_S_MAX = 900.0
PINS = Path(__file__).with_name("jars.json")


@dataclass(frozen=True)
class JarSet:
    """A set of jars."""

    name: str
    # its main modules, as (organisation, module, version); their runtime dependencies are the rest
    modules: tuple[tuple[str, str, str], ...]
    # modules whose jar alone is taken, without reading their poms
    bare: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()  # modules that are omitted, even as dependencies
    classifier: str = ""  # of each bare module's jar

    @property
    def version(self) -> str:
        """The version of its first module."""
        return self.modules[0][2]

    @property
    def folder(self) -> str:
        """The name of its folder in the cache, which depends on the versions."""
        wanted: tuple[Any, ...] = self.modules
        if self.bare or self.excluded:
            wanted = (self.modules, self.bare, self.excluded)
        text = json.dumps((wanted, self.classifier) if self.classifier else wanted)
        return f"{self.name}-{self.version}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


SETS: dict[str, JarSet] = {
    "kafka": JarSet(
        "kafka",
        (
            ("org.apache.kafka", "kafka_2.13", "4.3.1"),  # 4.4.0 is listed, but one of its jars is missing
            ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),  # Kafka includes no logging backend
        ),
    ),
    "kafka-tools": JarSet(
        "kafka-tools",
        (("org.apache.kafka", "kafka-tools", "4.3.1"),),  # its dependencies are in the set "kafka"
        bare=("kafka-tools",),
    ),
    "storm": JarSet(
        "storm",
        (
            # nimbus, supervisor, LocalCluster; includes log4j's backend
            ("org.apache.storm", "storm-server", STORM_VERSION),
            ("org.apache.storm", "storm-client", STORM_VERSION),
            ("org.apache.storm", "storm-core", STORM_VERSION),
            ("org.apache.storm", "flux-core", STORM_VERSION),
            ("org.apache.storm", "flux-wrappers", STORM_VERSION),
        ),
        bare=("flux-core", "flux-wrappers"),  # Flux's parent pom was never published; Storm has Flux's dependencies
        excluded=("storm-clojure", "slf4j-reload4j", "reload4j"),  # not on Central; a second logging backend
    ),
    "storm-kafka": JarSet(
        "storm-kafka",
        (("org.apache.storm", "storm-kafka-client", STORM_VERSION), ("org.apache.kafka", "kafka-clients", "4.1.0")),
        bare=("storm-kafka-client",),
        excluded=("slf4j-api", "slf4j-reload4j", "reload4j"),  # Storm has its own
    ),
    "spark-kafka": JarSet(
        "spark-kafka",
        # Spark's own connector, only for comparisons, in the version of the tested PySpark. Not all of its poms
        # resolve; Spark has its other dependencies.
        (
            ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
            ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.2.0"),
            ("org.apache.kafka", "kafka-clients", "3.9.2"),
            ("org.apache.commons", "commons-pool2", "2.13.1"),
        ),
        bare=("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2"),
    ),
    "spark-delta": JarSet(
        "spark-delta",
        # For Spark 4.2 to read Delta tables. 4.4.1 does not resolve; Spark has all other dependencies.
        tuple(
            ("io.delta", name, "4.4.0")
            for name in ("delta-spark_4.2_2.13", "delta-storage", "delta-kernel-api", "delta-kernel-defaults")
        ),
        bare=("delta-spark_4.2_2.13", "delta-storage", "delta-kernel-api", "delta-kernel-defaults"),
    ),
    "spark-s3": JarSet(
        "spark-s3",
        # For Spark 4.2 to read s3a://. hadoop-aws must have the version of Spark's Hadoop. Only the parts of Amazon's
        # client that reading needs: all of it is 600 MB.
        (
            ("org.apache.hadoop", "hadoop-aws", "3.5.0"),
            ("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.0"),
            *(
                ("software.amazon.awssdk", name, "2.35.4")
                for name in ("s3", "s3-transfer-manager", "apache-client", "sts")
            ),
        ),
        bare=("hadoop-aws", "analyticsaccelerator-s3"),
        excluded=("slf4j-api", "netty-nio-client"),
    ),
    "s3proxy": JarSet(
        "s3proxy",
        # An S3 server for tests: unlike moto, it lets only one of two concurrent conditional PUTs win.
        (("org.gaul", "s3proxy", "4.1.0"),),
        bare=("s3proxy",),
        classifier="jar-with-dependencies",
    ),
}
"""All sets: the broker and Kafka's tools, Storm, Storm's KafkaSpout, Spark's connector, Delta and S3 for Spark, and an
S3 server."""


def folder_of(name: str) -> Path:
    """Return the folder of a set, which may not exist."""
    return folders.cache() / "jars" / SETS[name].folder


@once
def pinned(name: str) -> tuple[Jar, ...]:
    """Return the list of a set's jars."""
    rows = json.loads(PINS.read_text(encoding="utf-8"))[name]
    return tuple(Jar(*row) for row in rows)


def resolve(name: str, progress: Callable[[str], None] = report_to_stderr) -> list[Path]:
    """Return the jars of a set; fetch them (once, about a minute) if they are not in the cache.

    ``progress`` receives a line before a download and every few seconds during it.

    Raises:
        MissingExtraError: the set is not in the cache, and no program can fetch it.
    """
    folder, version = folder_of(name), SETS[name].version
    if (jars := _present(name, folder)) is not None:
        return jars
    if os.environ.get("DOWNSPOUT_OFFLINE", "") not in ("", "0"):
        raise DownspoutError(
            f"The jars of {name} are not in {folder}, and DOWNSPOUT_OFFLINE forbids fetching them",
            cure=f"run once without DOWNSPOUT_OFFLINE, or copy {folder} from a machine that has it",
        )
    ways = ways_to_fetch(java)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.parent / f"{folder.name}.lock")
        with waiting(f"waiting for the jars of {name} {version}, which another process fetches", progress):
            if not lock.acquire(LOCK_S_MAX):
                raise DownspoutError(
                    f"Another process has been fetching the jars of {name} for {LOCK_S_MAX:g} s",
                    cure=f"see what holds {lock.path}",
                )
    except OSError as error:
        raise _unwritable(folder.parent, error) from error
    try:
        if (jars := _present(name, folder)) is not None:  # the other process was first
            return jars
        progress(f"fetching the jars of {name} {version} (once, about a minute) …")
        _fetch(name, folder, ways, progress)
    except OSError as error:
        raise _unwritable(folder.parent, error) from error
    finally:
        lock.release()
    return _present(name, folder) or []


def verify(name: str, folder: Path | None = None) -> list[str]:
    """Hash every jar of a set; return a line per wrong or missing jar.

    >>> verify("kafka") if folder_of("kafka").exists() else []
    []
    """
    folder, wanted = folder or folder_of(name), {jar.name: jar for jar in pinned(name)}
    wrong = [f"{folder / each} is missing" for each in wanted if not (folder / each).is_file()]
    return wrong + _others(folder, wanted)


def _others(folder: Path, wanted: dict[str, Jar]) -> list[str]:
    """Return a line per existing jar with other content, or from another set."""
    wrong: list[str] = []
    for path in sorted(folder.glob("*.jar")):
        found = path.stat()
        if (jar := wanted.get(path.name)) is None:
            wrong.append(f"{path} does not belong to the set")
        elif (sha256 := _sha256(path, found.st_size, found.st_mtime_ns)) != jar.sha256:
            wrong.append(f"{path}: SHA-256 {jar.sha256} is expected, found is {sha256}")
    return wrong


def _unwritable(folder: Path, error: OSError) -> DownspoutError:
    return DownspoutError(
        f"Jars cannot be stored in {folder}: {error.strerror or error}",
        cure="set DOWNSPOUT_CACHE to a folder that can be written to and has 400 MB free",
    )


def _present(name: str, folder: Path) -> list[Path] | None:
    """Return the jars if the folder is complete, else None."""
    wanted = {jar.name: jar for jar in pinned(name)}
    if wrong := _others(folder, wanted):
        raise DownspoutError(
            f"The jars of {name} differ from those that this version of Downspout expects: {'; '.join(wrong)}",
            cure=f"find out what changed them, remove {folder} and start again",
        )
    paths = [folder / each for each in wanted]
    return paths if all(path.is_file() for path in paths) else None


@once
def _sha256(path: Path, size: int, mtime_ns: int) -> str:
    """Return the hash of a file, cached by its size and modification time."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(name: str, folder: Path, ways: list[Way], progress: Callable[[str], None]) -> None:
    """Fill ``folder``; the caller holds its lock, which also covers the temporary folders."""
    work, scratch = folder.with_name(f"{folder.name}.part"), folder.with_name(f"{folder.name}.scratch")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        way = fetch(SETS[name].name, pinned(name), work, scratch, ways, progress)
        if wrong := verify(name, work):
            shutil.rmtree(scratch, ignore_errors=True)  # or the next attempt would use them
            raise DownspoutError(
                f"{way} fetched jars that differ from those that this version of Downspout expects: {'; '.join(wrong)}",
                cure="check the repository, mirror or proxy that they come from; none of them was used",
            )
        for path in (*work.iterdir(), work):
            sync_folder(path)
        shutil.rmtree(folder, ignore_errors=True)  # it was incomplete
        work.rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(scratch, ignore_errors=True)

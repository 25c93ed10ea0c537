"""Jars by name: fetched once, compared with known checksums, then served from the cache.

One set of jars (:data:`SETS`) is one folder in ``folders.cache()``. Its content is listed in ``jars.json``, which is
part of the package: each jar with its coordinates at Maven Central, its size and its SHA-256 (``make jars`` rewrites
it). :func:`resolve` returns a set, and hashes each jar before it is used: a difference is an error, for jars that were
just fetched and for those in the cache. Where the folder is whole, no network is touched and no program started.
:mod:`downspout.system.jars` chooses the program that fetches.

A folder appears at once and whole: jars are fetched into a temporary folder beside it, whose files are flushed to the
disk before the rename. A lock keeps two processes from doing the same work.

**Who fetches from Maven Central**: Maven or Ivy, whichever this machine has. Only the listed jars are asked for, by
their coordinates: what they need in turn is in the list already. The machine's own Maven comes first, then its own
Ivy: they know the mirror and the proxy that its owner has set up. Then the Ivy that PySpark ships. No address is named
here; each asks the repository that it is built with or set up for.
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
"""Where packages of operating systems put Ivy."""
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"


class Way(ABC):
    """A program that fetches jars."""

    name: str  # What it is called in messages

    @abstractmethod
    def fetch(self, jars: Sequence[Jar], work: Path, scratch: Path) -> None:
        """Fetch jars into a folder.

        ``scratch`` survives a failure, so that the next attempt continues there.

        Raises:
            DownspoutError: it could not.
        """


class Maven(Way):
    """The machine's ``mvn``, with its own settings and its own repository in the user's home."""

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
        # Ivy's exit code is 0 for some failed downloads, and the retrieve has then left a jar out.
        if "FAILED DOWNLOADS" in said or "UNRESOLVED" in said:
            raise _failed(self.name, said, "exit code 0")


def ways_to_fetch(java: Callable[[], Path]) -> list[Way]:
    """Return what this machine has to fetch jars with, the best first."""
    java()  # none of them works without, and this error says what to install
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
    """Return the Ivys of this machine: those of its packages, and that of the installed PySpark."""
    found = [path for path in map(Path, IVY_JARS) if path.is_file()]
    spec = importlib.util.find_spec("pyspark")  # finds the folder without importing PySpark
    for place in (spec.submodule_search_locations or []) if spec else []:
        found += sorted((Path(place) / "jars").glob("ivy-*.jar"))[-1:]
    return found


def fetch(what: str, jars: Sequence[Jar], work: Path, scratch: Path, ways: Iterable[Way], progress: Report) -> str:
    """Fetch jars in the first way that works, and return its name."""
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


# --- what they are asked ---


def pom(jars: Sequence[Jar]) -> str:
    """Return a Maven project that has these jars copied. They are no dependencies of it: so no poms are read."""
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
"""Ivy's settings where the jars are all known: it reads no poms."""


def ivy_xml(jars: Sequence[Jar]) -> str:
    """Return the Ivy file that asks for these jars, and nothing of what they need in turn."""
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
    """One jar: its coordinates at Maven Central, and what its file must be; mostly without a classifier."""

    organisation: str
    module: str
    version: str
    classifier: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return "-".join(filter(None, (self.module, self.version, self.classifier))) + ".jar"


STORM_VERSION = "2.8.3"  # the newest of which all jars that a node needs are on Maven Central
LOCK_S_MAX = 900.0
PINS = Path(__file__).with_name("jars.json")


@dataclass(frozen=True)
class JarSet:
    """Jars that belong together."""

    name: str  # of the set
    # which it is made of, as organisation, module and version; the rest is what these need at run time
    modules: tuple[tuple[str, str, str], ...]
    # names of modules of which the jar alone is taken: their pom is not looked at, nor what it asks for
    bare: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()  # names of modules that are left out, even as dependencies
    classifier: str = ""  # which jar of each bare module, where it has several

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
        text = json.dumps((wanted, self.classifier) if self.classifier else wanted)
        return f"{self.name}-{self.version}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


SETS: dict[str, JarSet] = {
    "kafka": JarSet(
        "kafka",
        (
            ("org.apache.kafka", "kafka_2.13", "4.3.1"),  # 4.4.0 is listed, but one of its jars is missing
            ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),  # Kafka brings no backend for its logs
        ),
    ),
    "kafka-tools": JarSet(
        "kafka-tools",
        (("org.apache.kafka", "kafka-tools", "4.3.1"),),  # what it needs is among the jars of "kafka"
        bare=("kafka-tools",),
    ),
    "storm": JarSet(
        "storm",
        (
            # nimbus, supervisor, LocalCluster; brings log4j's backend
            ("org.apache.storm", "storm-server", STORM_VERSION),
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
        # Spark's own connector, for comparison alone, of the version of PySpark that is tested. Not all of its poms
        # resolve; what it needs besides, Spark has.
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
        # What Spark 4.2 reads Delta tables with. 4.4.1 does not resolve; all else that they need, Spark has.
        tuple(
            ("io.delta", name, "4.4.0")
            for name in ("delta-spark_4.2_2.13", "delta-storage", "delta-kernel-api", "delta-kernel-defaults")
        ),
        bare=("delta-spark_4.2_2.13", "delta-storage", "delta-kernel-api", "delta-kernel-defaults"),
    ),
    "spark-s3": JarSet(
        "spark-s3",
        # What Spark 4.2 reads s3a:// with. hadoop-aws must have the version of Spark's Hadoop. Of Amazon's client only
        # the parts that are needed to read: all of it is 600 MB.
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
        # A server of S3's protocol that is not moto, for tests: of two conditional PUTs at a time one wins, as it must.
        (("org.gaul", "s3proxy", "4.1.0"),),
        bare=("s3proxy",),
        classifier="jar-with-dependencies",
    ),
}
"""All sets that the project uses: the broker and Kafka's own tools, Storm, Storm's KafkaSpout, Spark's connector,
Delta and S3 for Spark, and a server of S3's protocol."""


def folder_of(name: str) -> Path:
    """Return where a set is, or will be."""
    return folders.cache() / "jars" / SETS[name].folder


@once
def pinned(name: str) -> tuple[Jar, ...]:
    """Return the jars of a set, as they have to be."""
    rows = json.loads(PINS.read_text(encoding="utf-8"))[name]
    return tuple(Jar(*row) for row in rows)


def resolve(name: str, progress: Callable[[str], None] = report_to_stderr) -> list[Path]:
    """Return the jars of a set, fetching them where the cache does not have them (about a minute, once).

    ``progress`` is given a line before a download and every few seconds while it goes on.

    Raises:
        MissingExtraError: the cache does not have the set, and there is nothing to fetch it with.
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
    """Hash every jar of a set and return what is wrong, one line each; nothing where all is well.

    >>> verify("kafka") if folder_of("kafka").exists() else []
    []
    """
    folder, wanted = folder or folder_of(name), {jar.name: jar for jar in pinned(name)}
    wrong = [f"{folder / each} is missing" for each in wanted if not (folder / each).is_file()]
    return wrong + _others(folder, wanted)


def _others(folder: Path, wanted: dict[str, Jar]) -> list[str]:
    """Return what is wrong with the jars that are there: another content, or of another set."""
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
    """Return the jars if the folder has all of them, else None."""
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
    """Return the hash of a file; size and time of change are there to remember it by: a JVM's start takes longer."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(name: str, folder: Path, ways: list[Way], progress: Callable[[str], None]) -> None:
    """Fill ``folder``; the caller holds its lock, so that the names beside it are ours."""
    work, scratch = folder.with_name(f"{folder.name}.part"), folder.with_name(f"{folder.name}.scratch")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        way = fetch(SETS[name].name, pinned(name), work, scratch, ways, progress)
        if wrong := verify(name, work):
            shutil.rmtree(scratch, ignore_errors=True)  # or the next attempt would find them there
            raise DownspoutError(
                f"{way} fetched jars that differ from those that this version of Downspout expects: {'; '.join(wrong)}",
                cure="check the repository, mirror or proxy that they come from; none of them was used",
            )
        for path in (*work.iterdir(), work):
            sync_folder(path)
        shutil.rmtree(folder, ignore_errors=True)  # what was there is not whole
        work.rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(scratch, ignore_errors=True)

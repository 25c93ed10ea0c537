"""Who fetches jars from Maven Central: Maven or Ivy, whichever this machine has.

Asked for are jars by their coordinates, none more: what they need in turn is in the list already (``jars.json``). The
machine's own Maven comes first, then its own Ivy: they know the mirror and the proxy that its owner has set up. Then
the Ivy that PySpark ships. No address is named here; each asks the repository that it is built with or set up for.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from downspout.errors import DownspoutError, MissingExtraError
from downspout.system.java import home_of, trust_options
from downspout.system.java import java as java
from downspout.system.waiting import Report, waiting

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


def ways(java: Callable[[], Path]) -> list[Way]:
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

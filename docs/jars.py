"""Write ``downspout/system/jars.json``: the jars of each set, with all that they need, by name and by hash.

``make jars`` runs it. Do so after a change of :data:`downspout.system.jars.SETS`, and look at what it changes before it
is committed: from then on these very files are what every machine accepts.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from xml.sax.saxutils import quoteattr

from downspout.system import jars
from downspout.system.jars import PINS, SETS, Jar, JarSet
from downspout.system.java import java
from downspout.system.waiting import report_to_stderr, waiting

SEPARATOR = "~"


def request(jar_set: JarSet) -> str:
    """Return the Ivy file that asks for a set, with all that it needs at run time."""
    # "default" of a Maven module is its own jar and all that it needs at run time; its "runtime" lacks the jar itself.
    wanted = [
        f'<dependency org={quoteattr(org)} name={quoteattr(name)} rev={quoteattr(revision)} conf="default->default"'
        + (f' transitive="false">{_artifact(jar_set, name)}</dependency>' if name in jar_set.bare else "/>")
        for org, name, revision in jar_set.modules
    ]
    wanted += [f"<exclude module={quoteattr(name)}/>" for name in jar_set.excluded]
    head = '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
    head += '<info organisation="downspout" module="jars"/>'
    head += '<configurations><conf name="default"/></configurations>'
    return "\n".join([head, "<dependencies>", *wanted, "</dependencies></ivy-module>"])


def _artifact(jar_set: JarSet, name: str) -> str:
    if not jar_set.classifier:
        return ""
    return f'<artifact name={quoteattr(name)} type="jar" ext="jar" m:classifier={quoteattr(jar_set.classifier)}/>'


def settings(jar_set: JarSet) -> str:
    """Return Ivy's settings: Maven Central, and a second view of it that reads no poms, for the bare modules."""
    bare = [
        f'<module organisation={quoteattr(org)} name={quoteattr(name)} resolver="jars-only"/>'
        for org, name, _ in jar_set.modules
        if name in jar_set.bare
    ]
    lines = [
        '<ivysettings><settings defaultResolver="central"/>',
        '<resolvers><ibiblio name="central" m2compatible="true"/>',
        '<ibiblio name="jars-only" m2compatible="true" usepoms="false"/></resolvers>',
        "<modules>",
        *bare,
        "</modules></ivysettings>",
    ]
    return "\n".join(lines)


def jars_of(jar_set: JarSet, folder: Path) -> list[Jar]:
    """Fetch a set with all that it needs; return its jars."""
    work, scratch = folder / "jars", folder / "scratch"
    work.mkdir(parents=True)
    scratch.mkdir()
    ivy = jars.Ivy(jars.ivy_jars()[-1], java)
    pattern = SEPARATOR.join(["[organisation]", "[module]", "[revision]", "([classifier])", "[artifact].[ext]"])
    with waiting(f"resolving {jar_set.name}", report_to_stderr):
        ivy.run(work, scratch, request(jar_set), settings(jar_set), pattern)
    found = []
    for path in sorted(work.iterdir()):
        organisation, module, version, classifier, artifact = path.name.split(SEPARATOR)
        if artifact != f"{module}.jar":
            raise SystemExit(f"{path.name}: a jar that is not called as its module")
        content = path.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        found.append(Jar(organisation, module, version, classifier, len(content), sha256))
    return found


def main() -> None:
    """Resolve all sets anew."""
    sets = []
    with tempfile.TemporaryDirectory(prefix="downspout-jars-") as folder:
        for name, jar_set in SETS.items():
            rows = ",\n".join(json.dumps(jar) for jar in jars_of(jar_set, Path(folder, name)))
            sets.append(f"{json.dumps(name)}: [\n{rows}\n]")
    PINS.write_text("{" + ",\n".join(sets) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""What a streamparse project's ``project.clj`` says, as far as our ``lein`` needs it.

A project file is Clojure, which only Leiningen can read in full. What ``sparse quickstart`` writes is a list of plain
keys and values, and those are found by their form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from downspout.errors import StormError

STORM_MODULES = frozenset({"storm-core", "storm-client", "storm-server", "flux-core", "flux-wrappers"})
"""What the Storm that is there brings, whatever version the project names."""


@dataclass(frozen=True)
class Project:
    """What a project file says: folders relative to the project, dependencies as versions by ``group/name``.

    ``needs_lein`` has the keys that only the real Leiningen can serve.
    """

    name: str
    version: str
    target: str
    resources: tuple[str, ...]
    dependencies: dict[str, str]
    needs_lein: tuple[str, ...] = ()

    @property
    def storm_versions(self) -> dict[str, str]:
        """The versions of Storm's modules that the project names."""
        return {name: version for name, version in self.dependencies.items() if _module(name) in STORM_MODULES}

    @property
    def others(self) -> list[str]:
        """Dependencies besides Storm's."""
        return [
            f"{name} {version}" for name, version in self.dependencies.items() if _module(name) not in STORM_MODULES
        ]


def _module(name: str) -> str:
    return name.rpartition("/")[2]


def parse(text: str) -> Project:
    """Read a project file.

    >>> project = parse('(defproject p "1.0" :dependencies [[org.apache.storm/storm-core "1.1.0"] [a/b "2"]])')
    >>> project.name, project.storm_versions, project.others
    ('p', {'org.apache.storm/storm-core': '1.1.0'}, ['a/b 2'])
    """
    text = re.sub(r'("(?:\\.|[^"\\])*")|;[^\n]*', lambda found: found[1] or "", text)
    head = re.search(r'\(defproject\s+([^\s"()]+)\s+"([^"]*)"', text)
    if head is None:
        raise StormError("project.clj does not begin with a project", cure='(defproject NAME "VERSION" …)')
    block = re.search(r":dependencies\s*\[((?:\s*\[[^\[\]]*(?:\[[^\]]*\][^\[\]]*)*\])*)\s*\]", text)
    pairs = re.findall(r'\[\s*([^\s"\[\]]+)\s+"([^"]+)"', block[1] if block else "")
    target = re.search(r':target-path\s+"([^"]+)"', text)
    folders = re.search(r":resource-paths\s*\[([^\]]*)\]", text)
    return Project(
        name=_module(head[1]),
        version=head[2],
        target=target[1] if target else "target",
        resources=tuple(re.findall(r'"([^"]+)"', folders[1])) if folders else ("resources",),
        dependencies=dict(pairs),
        needs_lein=tuple(key for key in (":java-source-paths", ":aot") if re.search(rf"{key}\s*\[?\s*[\w\"]", text)),
    )


def read(folder: Path) -> Project:
    """Read the project file of a folder."""
    try:
        return parse((folder / "project.clj").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise StormError(
            f"{folder / 'project.clj'} cannot be read: {error}", cure="the root of a streamparse project"
        ) from None

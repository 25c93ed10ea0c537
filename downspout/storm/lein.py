"""A ``lein`` that does for stock streamparse what it needs of Leiningen.

Leiningen requires a repository that many networks cannot reach, only to zip the Python files of a project. This program
reads ``project.clj`` and answers ``version``, ``deps :tree``, ``clean``, ``jar`` and ``uberjar``. It reports the
installed version of Storm as the project's: streamparse insists that the two are equal, and a project may pin an old
one.

**``project.clj``.** A project file is Clojure, which only Leiningen can read in full. ``sparse quickstart`` writes a
list of plain keys and values; regular expressions find those.

**The bundle** is the Python side of a topology as one archive, for workers that cannot install anything. A topology's
own files travel in its jar; the worker must have what they import. For this, streamparse would make a virtual
environment on each worker by SSH and pip. The bundle puts the same files in the same place without either: unpacked in
``virtualenv_root``, it provides ``NAME/bin/streamparse_run``, which ``sparse submit`` tells Storm to start, and
``NAME/lib`` with the files of every required distribution. Workers bring Python itself, of the version and platform
that the bundle was made with.
"""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from downspout.errors import DownspoutError, StormError
from downspout.system import jars
from downspout.system.packaging import archive, check_imports, closure, files_below, files_of, python_name, readme

# --- project.clj ---

STORM_MODULES = frozenset({"storm-core", "storm-client", "storm-server", "flux-core", "flux-wrappers"})
"""Modules of the installed Storm, which replace those of any version that the project names."""


@dataclass(frozen=True)
class Project:
    """The content of a project file: folders relative to the project, dependencies as versions by ``group/name``.

    ``needs_lein`` has the keys that only the real Leiningen supports.
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


def parse_project(text: str) -> Project:
    """Read a project file.

    >>> project = parse_project('(defproject p "1.0" :dependencies [[org.apache.storm/storm-core "1.1.0"] [a/b "2"]])')
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


def read_project(folder: Path) -> Project:
    """Read the project file of a folder."""
    try:
        return parse_project((folder / "project.clj").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise StormError(
            f"{folder / 'project.clj'} cannot be read: {error}", cure="the root of a streamparse project"
        ) from None


# --- the bundle ---

LAUNCHER = """\
#!/bin/sh
# Starts a component of the topology {name}: see "downspout storm bundle".
here=$(cd "$(dirname "$0")/.." && pwd)
python=${{DOWNSPOUT_PYTHON:-{python}}}
command -v "$python" >/dev/null || {{ echo "downspout: $python is not on the PATH of this worker" >&2; exit 3; }}
PYTHONPATH="$here/lib" exec "$python" -s -P -m streamparse.run "$@"
"""
"""-P: the working directory is the topology's, whose files streamparse finds by itself and after the libraries."""


def write_bundle(target: Path, name: str, extra: Iterable[str] = (), modules: Collection[str] = ()) -> dict[str, str]:
    """Write the archive (``.tar.gz``); return the version of each distribution in it.

    ``modules`` are those of the topology's components; files in ``src`` travel in the jar.

    Raises:
        MissingExtraError: a required package is not installed here, or would be missing on the worker.
        ConfigError: the archive cannot be written.
    """
    packages = closure(["downspout", *extra])
    if modules:
        jar = [place for place, _ in files_below(Path("src"))]
        installed = [place for package in packages.values() for place, _ in files_of(package)]
        check_imports(modules, [*jar, *installed, "downspout"], [Path("src")], Path())
    with archive(target) as packed:
        packed.add_text(f"{name}/bin/streamparse_run", LAUNCHER.format(name=name, python=python_name()), 0o755)
        packed.add_text(f"{name}/README", readme(packages))
        packed.add_packages(packages, f"{name}/lib/")
    return {key: package.version for key, package in sorted(packages.items())}


# --- the program ---

LEFT_OUT = frozenset({"__pycache__", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache"})
MANIFEST = "Manifest-Version: 1.0\r\nCreated-By: downspout\r\n\r\n"
EPOCH = (1980, 1, 1, 0, 0, 0)  # The time of every entry, which makes jars reproducible


def version(folder: Path) -> None:
    """Print this program's name and Storm's version."""
    print(f"Leiningen 2.0.0 as far as streamparse needs it (downspout, Storm {jars.STORM_VERSION})")


def dependencies(folder: Path) -> None:
    """Print the dependency tree, with the installed Storm."""
    project = read_project(folder)
    warn(project)
    for name, number in {"org.apache.storm/storm-core": "", **project.dependencies}.items():
        is_storm = name.rpartition("/")[2] in STORM_MODULES
        print(f' [{name} "{jars.STORM_VERSION if is_storm else number}"]')


def clean(folder: Path) -> None:
    """Remove what was built. Of all tasks, streamparse shows only this one's output, hence the warnings."""
    project = read_project(folder)
    warn(project)
    shutil.rmtree(_target(folder, project), ignore_errors=True)


def jar(folder: Path) -> None:
    """Build the jar of a topology without Java."""
    _build(folder, "")


def uberjar(folder: Path) -> None:
    """Build the same jar as :func:`jar`, since Storm itself is on the classpath that runs it."""
    _build(folder, "-standalone")


def _build(folder: Path, suffix: str) -> None:
    project = read_project(folder)
    target = _target(folder, project)
    target.mkdir(parents=True, exist_ok=True)
    path = target / f"{project.name}-{project.version}{suffix}.jar"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", EPOCH), MANIFEST)
        for name in project.resources:
            add_folder(archive, folder / name, "")
    print(f"Created {path}")


def add_folder(archive: zipfile.ZipFile, folder: Path, prefix: str) -> None:
    """Add the files below a folder, in order, without caches and compiled files."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and path.suffix != ".pyc" and not LEFT_OUT.intersection(inside.parts):
            entry = zipfile.ZipInfo(prefix + inside.as_posix(), EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (path.stat().st_mode & 0o777) << 16
            archive.writestr(entry, path.read_bytes())


def _target(folder: Path, project: Project) -> Path:
    target = (folder / project.target).resolve()
    if folder.resolve() not in target.parents:
        raise StormError(f":target-path {project.target!r} lies outside of {folder}", cure='"_build"')
    return target


def warn(project: Project) -> None:
    """Warn on stderr about every instruction in the project file that this program does not follow."""
    for name, number in project.storm_versions.items():
        if number != jars.STORM_VERSION:
            _say(f"project.clj names {name} {number}, but the installed Storm {jars.STORM_VERSION} is used")
    if project.others:
        _say(f"project.clj names {', '.join(project.others)}: only Leiningen would fetch Java libraries")
    for key in project.needs_lein:
        _say(f"project.clj has {key}: only Leiningen would compile Java")


def _say(line: str) -> None:
    print(f"downspout: warning: {line}", file=sys.stderr, flush=True)


TASKS: dict[tuple[str, ...], Callable[[Path], None]] = {
    ("version",): version,
    ("deps", ":tree"): dependencies,
    ("clean",): clean,
    ("jar",): jar,
    ("uberjar",): uberjar,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one task in the working directory; return the exit code."""
    arguments = tuple(sys.argv[1:] if argv is None else argv)
    task = TASKS.get(arguments)
    try:
        if task is None:
            raise StormError(
                f"lein {' '.join(arguments)}: this lein supports only {', '.join(' '.join(each) for each in TASKS)}",
                cure="the real Leiningen, by its path",
            )
        task(Path.cwd())
    except DownspoutError as error:
        print(f"downspout: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

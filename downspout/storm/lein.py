"""Our ``lein``: what stock streamparse asks of Leiningen, answered without it.

Leiningen wants a repository that many networks do not have, for one job: to zip the Python files of a project. This
one reads ``project.clj`` and answers ``version``, ``deps :tree``, ``clean``, ``jar`` and ``uberjar``. For Storm's
version it names the Storm that is there: streamparse insists that the two are equal, and a project may pin an old one.
"""

from __future__ import annotations

import shutil
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from downspout.errors import DownspoutError, StormError
from downspout.storm import project_clj
from downspout.storm.project_clj import Project
from downspout.system import jars

LEFT_OUT = frozenset({"__pycache__", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache"})
MANIFEST = "Manifest-Version: 1.0\r\nCreated-By: downspout\r\n\r\n"
EPOCH = (1980, 1, 1, 0, 0, 0)  # The time of every entry, so that the same files make the same jar


def version(folder: Path) -> None:
    """Say who answers."""
    print(f"Leiningen 2.0.0 as far as streamparse needs it (downspout, Storm {jars.STORM_VERSION})")


def dependencies(folder: Path) -> None:
    """Print the tree of dependencies, with the Storm that is there."""
    project = project_clj.read(folder)
    warn(project)
    for name, number in {"org.apache.storm/storm-core": "", **project.dependencies}.items():
        is_storm = name.rpartition("/")[2] in project_clj.STORM_MODULES
        print(f' [{name} "{jars.STORM_VERSION if is_storm else number}"]')


def clean(folder: Path) -> None:
    """Remove what was built. streamparse shows what this one says, and hides what the others say."""
    project = project_clj.read(folder)
    warn(project)
    shutil.rmtree(_target(folder, project), ignore_errors=True)


def jar(folder: Path) -> None:
    """Make the jar of a topology without Java."""
    _build(folder, "")


def uberjar(folder: Path) -> None:
    """Make the jar with all that it needs; Storm itself is on the classpath of who runs it, so it is the same."""
    _build(folder, "-standalone")


def _build(folder: Path, suffix: str) -> None:
    project = project_clj.read(folder)
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
    """Say on stderr where this program does something else than the project file asks for."""
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

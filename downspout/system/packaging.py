"""Archives with the installed packages that a topology needs on other machines.

Storm's workers and Spark's executors often have neither a network nor Downspout. :func:`closure` finds the required
distributions, :func:`files_of` and :func:`own_files` their files, and :class:`Archive` packs them. The engines decide
on the layout (``downspout.storm.lein``, ``downspout.spark.submit``). Python itself is not packed: the target machine
needs one of the same version and platform.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from downspout.errors import ConfigError, MissingExtraError

OWN_PACKAGES = ("spouts", "bolts")  # In a wheel, inside ``downspout``; in a checkout, beside it
COMPRESSION = 1  # gzip's level: the archive is a seventh larger than with level 6, in a third of the time


def requirements(folder: Path, name: str) -> list[str]:
    """Return a topology's requirements: the lines of ``virtualenvs/NAME.txt``, if it exists."""
    path = folder / "virtualenvs" / f"{name}.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [text for line in lines if (text := line.partition("#")[0].strip()) and not text.startswith("-")]


def closure(wanted: Iterable[str], without: Collection[str] = ()) -> dict[str, Distribution]:
    """Return the installed distributions for these requirements, with their dependencies.

    The target has the distributions ``without`` already; they and their dependencies are omitted.

    >>> sorted(closure(["sortedcontainers"]))
    ['sortedcontainers']
    """
    from pkg_resources import Requirement

    found: dict[str, Distribution] = {}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    waiting = [(text, "") for text in wanted]
    while waiting:
        text, wanted_by = waiting.pop()
        try:
            requirement = Requirement.parse(text)
        except ValueError:
            raise ConfigError(f"{text!r} is not a requirement", cure="NAME or NAME==VERSION") from None
        name, extras = _normal(requirement.project_name), tuple(sorted(requirement.extras))
        if (name, extras) in seen or name in without:
            continue
        seen.add((name, extras))
        try:
            found[name] = distribution(requirement.project_name)
        except PackageNotFoundError:
            by = f", which {wanted_by} needs," if wanted_by else ""
            raise MissingExtraError(f"{text}{by} is not installed here", cure=f"`pip install {text!r}`") from None
        for line in found[name].requires or ():
            marker = Requirement.parse(line).marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                waiting.append((line.partition(";")[0].strip(), name))
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def files_of(package: Distribution) -> Iterator[tuple[str, Path]]:
    """Yield the installed files of a distribution, each with its path below ``lib``; omits programs."""
    for file in package.files or ():
        parts = file.parts
        if parts[0] not in ("..", "/") and "__pycache__" not in parts and not file.name.endswith(".pth"):
            path = Path(str(file.locate()))
            if path.is_file():
                yield file.as_posix(), path


def own_files() -> Iterator[tuple[str, Path]]:
    """Yield the files of this library in the layout of a wheel."""
    package = Path(__file__).parents[1]
    found = [(package, "downspout")]
    found += [(package.parent / name, f"downspout/{name}") for name in OWN_PACKAGES if not (package / name).exists()]
    for folder, place in found:
        for inside, path in files_below(folder):
            yield f"{place}/{inside}", path


def files_below(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files below a folder, in order, with their relative paths; follows links, omits caches."""
    for base, folders, names in os.walk(folder, followlinks=True):
        real = Path(base).resolve()
        wanted = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        # A link to a folder that contains it (``src -> .``) is not followed: it would never end.
        folders[:] = [name for name in wanted if not real.is_relative_to(Path(base, name).resolve())]
        for name in sorted(names):
            path = Path(base, name)
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path


_IMPORT = """
import importlib, importlib.abc, importlib.machinery, json, sys, sysconfig
packed, modules, path = json.loads(sys.stdin.read())
library = sysconfig.get_path("stdlib")
class Packed(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if path is None and name not in packed and name not in sys.stdlib_module_names:
            found = getattr(importlib.machinery.PathFinder.find_spec(name), "origin", None) or ""
            if not found.startswith(library) or "site-packages" in found:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Packed())
sys.path[:0] = path
for module in modules:
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        print(json.dumps([module, f"{type(error).__name__}: {error}", getattr(error, "name", None) or ""]))
        break
"""
"""Imports modules with only the standard library and the packed modules visible."""


def check_imports(modules: Collection[str], places: Iterable[str], path: Iterable[Path], project: Path) -> None:
    """Check that modules can be imported from the files planned for an archive, before it is made.

    Args:
        modules: dotted names.
        places: paths in the archive, relative to Python's module path there.
        path: local folders with the project's files among these.
        project: the folder with files that could be added.

    Raises:
        MissingExtraError: one cannot be imported; the message names it, and the option that packs the missing module.
    """
    packed = sorted({place.partition("/")[0].partition(".")[0] for place in places})
    given = json.dumps([packed, sorted(modules), [str(each.resolve()) for each in path]])
    command = [sys.executable, "-P", "-c", _IMPORT]
    said = subprocess.run(command, input=given, capture_output=True, text=True, check=False).stdout
    lines = [line for line in said.splitlines() if line.startswith("[")]  # modules may print too
    if not lines:
        return
    module, reason, missing = json.loads(lines[-1])
    top = missing.partition(".")[0]
    file = next((each for each in (f"{top}.py", top) if top and (project / each).exists()), None)
    names = sorted(packages_distributions().get(top, ()))
    cure = f"--add {file}" if file else f"--with {names[0]}" if names else "correct that first"
    raise MissingExtraError(f"{module} cannot be imported from the archive: {reason}", cure=cure)


def python_name() -> str:
    """Return the name of this Python version on the PATH of other machines: ``python3.11``."""
    return f"python{sys.version_info[0]}.{sys.version_info[1]}"


def readme(packages: Mapping[str, Distribution]) -> str:
    """Return a text that names the Python, the platform and the version of each distribution."""
    head = f"Python {sys.version_info[0]}.{sys.version_info[1]}, {sysconfig.get_platform()}\n\n"
    return head + "".join(f"{name} {package.version}\n" for name, package in sorted(packages.items()))


class Archive:
    """A ``.tar.gz`` being written; of several files with one path, the first is kept."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._taken: set[str] = set()

    def add(self, place: str, path: Path) -> None:
        """Add a file; of a link, its target."""
        if place not in self._taken:
            self._taken.add(place)
            self._archive.add(path.resolve(), place, recursive=False)

    def add_text(self, place: str, text: str, mode: int = 0o644) -> None:
        """Add a text as a file."""
        data = text.encode()
        entry = tarfile.TarInfo(place)
        entry.size, entry.mode = len(data), mode
        self._taken.add(place)
        self._archive.addfile(entry, io.BytesIO(data))

    def add_packages(self, packages: Mapping[str, Distribution], prefix: str = "") -> None:
        """Add the files of distributions, and of this library, below a folder."""
        for place, path in own_files():
            self.add(prefix + place, path)
        for package in (each for key, each in packages.items() if key != "downspout"):
            for place, path in files_of(package):
                self.add(prefix + place, path)


@contextmanager
def archive(target: Path) -> Iterator[Archive]:
    """Yield an archive to fill; ``target`` appears once it is complete."""
    part = target.with_name(f".{target.name}.part")
    try:
        with tarfile.open(part, "w:gz", compresslevel=COMPRESSION) as file:
            yield Archive(file)
        part.replace(target)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror or error}", cure="another --output") from None
    finally:
        part.unlink(missing_ok=True)

"""The Python side of a topology as one archive, for workers that cannot install anything.

A topology's own files travel in its jar. What they import, a worker must have: streamparse would make a virtual
environment on each by SSH and pip. The bundle holds the same in the same place without either: unpacked in
``virtualenv_root`` it is ``NAME/bin/streamparse_run``, which is what ``sparse submit`` tells Storm to start, and
``NAME/lib`` with the installed files of every distribution that is needed. Workers bring the Python itself, of the
version and platform that the bundle was made with.
"""

from __future__ import annotations

import io
import re
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import downspout
from downspout.errors import ConfigError, MissingExtraError

LAUNCHER = """\
#!/bin/sh
# Starts a component of the topology {name}: see "downspout storm bundle".
here=$(cd "$(dirname "$0")/.." && pwd)
python=${{DOWNSPOUT_PYTHON:-python{version}}}
command -v "$python" >/dev/null || {{ echo "downspout: $python is not on the PATH of this worker" >&2; exit 3; }}
PYTHONPATH="$here/lib" exec "$python" -s -P -m streamparse.run "$@"
"""
"""-P: the working directory is the topology's, whose files streamparse finds by itself and after the libraries."""

OWN_ROOMS = ("spouts", "bolts")
"""What the wheel carries inside of ``downspout``, and a checkout beside it."""


def requirements(folder: Path, name: str, config_specs: str = "virtualenvs/") -> list[str]:
    """Return what a project says that a topology needs: the lines of ``virtualenvs/NAME.txt``, where it exists."""
    path = folder / config_specs / f"{name}.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [text for line in lines if (text := line.partition("#")[0].strip()) and not text.startswith("-")]


def closure(wanted: Iterable[str]) -> dict[str, Distribution]:
    """Return the installed distributions that these requirements need, with all that those need in turn.

    Raises:
        MissingExtraError: one of them is not installed here.
        ConfigError: a line is no requirement.

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
            raise ConfigError(f"{text!r} is no requirement", cure="NAME or NAME==VERSION") from None
        name, extras = _normal(requirement.project_name), tuple(sorted(requirement.extras))
        if (name, extras) in seen:
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
    """Yield the installed files of a distribution, each with its place below ``lib``; programs are left out."""
    for file in package.files or ():
        parts = file.parts
        if parts[0] not in ("..", "/") and "__pycache__" not in parts and not file.name.endswith(".pth"):
            path = Path(str(file.locate()))
            if path.is_file():
                yield file.as_posix(), path


def own_files() -> Iterator[tuple[str, Path]]:
    """Yield the files of this library, from a wheel or from a checkout, as a wheel would have them."""
    package = Path(downspout.__file__).parent
    rooms = [(package, "downspout")]
    rooms += [(package.parent / room, f"downspout/{room}") for room in OWN_ROOMS if not (package / room).exists()]
    for folder, place in rooms:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{place}/{path.relative_to(folder).as_posix()}", path


def write(target: Path, name: str, extra: Iterable[str] = ()) -> dict[str, str]:
    """Write the archive (``.tar.gz``); return the version of each distribution in it.

    Args:
        target: the archive.
        name: of the topology, which is its folder.
        extra: requirements besides this library's own.

    Raises:
        MissingExtraError: something that is needed is not installed here.
        ConfigError: the archive cannot be written.
    """
    packages = closure(["downspout", *extra])
    try:
        with tarfile.open(target, "w:gz", compresslevel=6) as archive:
            launcher = LAUNCHER.format(name=name, version=f"{sys.version_info[0]}.{sys.version_info[1]}")
            _add_text(archive, f"{name}/bin/streamparse_run", launcher, 0o755)
            _add_text(archive, f"{name}/README", _readme(packages), 0o644)
            for place, path in own_files():
                archive.add(path, f"{name}/lib/{place}", recursive=False)
            for package in (each for key, each in packages.items() if key != "downspout"):
                for place, path in files_of(package):
                    archive.add(path, f"{name}/lib/{place}", recursive=False)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror or error}", cure="another --output") from None
    return {key: package.version for key, package in sorted(packages.items())}


def _readme(packages: dict[str, Distribution]) -> str:
    head = f"Python {sys.version_info[0]}.{sys.version_info[1]}, {sysconfig.get_platform()}\n\n"
    return head + "".join(f"{name} {package.version}\n" for name, package in sorted(packages.items()))


def _add_text(archive: tarfile.TarFile, name: str, text: str, mode: int) -> None:
    data = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))

"""The Python side of a topology as one archive, for workers that cannot install anything.

A topology's own files travel in its jar. What they import, a worker must have: streamparse would make a virtual
environment on each by SSH and pip. The bundle holds the same in the same place without either: unpacked in
``virtualenv_root`` it is ``NAME/bin/streamparse_run``, which is what ``sparse submit`` tells Storm to start, and
``NAME/lib`` with the installed files of every distribution that is needed. Workers bring the Python itself, of the
version and platform that the bundle was made with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from downspout.system.packaging import archive, check_imports, closure, files_below, files_of, python_name, readme

LAUNCHER = """\
#!/bin/sh
# Starts a component of the topology {name}: see "downspout storm bundle".
here=$(cd "$(dirname "$0")/.." && pwd)
python=${{DOWNSPOUT_PYTHON:-{python}}}
command -v "$python" >/dev/null || {{ echo "downspout: $python is not on the PATH of this worker" >&2; exit 3; }}
PYTHONPATH="$here/lib" exec "$python" -s -P -m streamparse.run "$@"
"""
"""-P: the working directory is the topology's, whose files streamparse finds by itself and after the libraries."""


def write(target: Path, name: str, extra: Iterable[str] = (), modules: Collection[str] = ()) -> dict[str, str]:
    """Write the archive (``.tar.gz``); return the version of each distribution in it.

    ``modules`` are those of the topology's components; what is in ``src`` travels in the jar.

    Raises:
        MissingExtraError: something that is needed is not installed here, or would not be on the worker.
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

"""Each peer lives in its own virtual environment: made once from pinned requirements, kept in the cache.

What a peer needs is ``bench/peers/requirements/<name>.txt``. Its environment's folder carries a hash of those pins and
of the Python that made it, so other pins make another environment. Old ones stay until someone deletes
``~/.cache/downspout/bench``.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from bench.harness import say
from downspout.settings import folders
from downspout.system import FileLock

REQUIREMENTS = Path(__file__).parent / "peers" / "requirements"
INSTALL_S_MAX = 1800.0


class UnavailableError(Exception):
    """A peer cannot be installed here; the message says why."""


def pins(name: str) -> list[str]:
    """Return what a peer is pinned to, as ``package==version``."""
    lines = (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def version_of(name: str, package: str) -> str:
    """Return the version that a peer pins of a package.

    >>> version_of("spark_connector", "pyspark")
    '4.2.0'
    """
    return next(pin.partition("==")[2] for pin in pins(name) if pin.partition("==")[0].lower() == package)


def folder_of(name: str) -> Path:
    """Return where a peer's environment is, or will be."""
    key = "\n".join([sys.version, sys.executable, *pins(name)])
    return folders.cache() / "bench" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def python_of(name: str) -> Path:
    """Return the Python of a peer's environment, which is made where it is not there (a minute or two, once).

    Raises:
        UnavailableError: pip could not install it; nothing of it is left.
    """
    folder = folder_of(name)
    python, finished = folder / "bin" / "python", folder / "finished"
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    if not lock.acquire(INSTALL_S_MAX):
        raise UnavailableError(f"another process has been installing it for {INSTALL_S_MAX:g} s")
    try:
        if not finished.exists():  # not there, or its maker was killed half-way
            say(f"installing {name} into {folder} …")
            shutil.rmtree(folder, ignore_errors=True)
            _install(name, folder, python)
            finished.touch()
    finally:
        lock.release()
    return python


def _install(name: str, folder: Path, python: Path) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
               "--requirement", str(REQUIREMENTS / f"{name}.txt")]  # fmt: skip
    try:
        venv.create(folder, with_pip=True)
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S_MAX)
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise UnavailableError(said[-1] if said else type(error).__name__) from None

"""A virtual environment per peer, made once from pinned requirements and cached.

A peer's requirements are in ``bench/peers/requirements/<name>.txt``. The folder's name includes a hash of them and of
the Python version, so other pins give another environment. Old ones stay until someone deletes
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
    """A peer cannot be installed here."""


def pins(name: str) -> list[str]:
    """Return a peer's pinned requirements, as ``package==version``."""
    lines = (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def version_of(name: str, package: str) -> str:
    """Return a peer's pinned version of a package.

    >>> version_of("spark_connector", "pyspark")
    '4.2.0'
    """
    return next(pin.partition("==")[2] for pin in pins(name) if pin.partition("==")[0].lower() == package)


def folder_of(name: str) -> Path:
    """Return the folder of a peer's environment, which may not exist."""
    key = "\n".join([sys.version, sys.executable, *pins(name)])
    return folders.cache() / "bench" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def python_of(name: str) -> Path:
    """Return the Python of a peer's environment, which is created if missing (once, a minute or two).

    Raises:
        UnavailableError: pip could not install it; the folder is removed.
    """
    folder = folder_of(name)
    python, finished = folder / "bin" / "python", folder / "finished"
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    if not lock.acquire(INSTALL_S_MAX):
        raise UnavailableError(f"another process has been installing it for {INSTALL_S_MAX:g} s")
    try:
        if not finished.exists():  # missing, or incomplete after a kill
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

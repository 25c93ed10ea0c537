"""The environment in which stock streamparse finds what it looks for: our ``lein`` and ``storm``, and nimbus."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from downspout.settings import folders
from downspout.storm.node import StormNode
from downspout.storm.node_files import HOST, OURS, python_path
from downspout.system import files

PROGRAMS = {"lein": "downspout.storm.lein", "storm": "downspout.storm.program", "sparse": "downspout.storm.sparse"}


def write(directory: Path) -> Path:
    """Write the programs for the node of a directory; return their folder."""
    folder = directory / "bin"
    files.own(directory, OURS)
    folder.mkdir(mode=0o700, exist_ok=True)
    for name, module in PROGRAMS.items():
        # -P: a project's own files must not stand in for ours.
        text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m {module} "$@"\n'
        draft = folder / f".{name}.{os.getpid()}"
        draft.write_text(text, encoding="utf-8")
        draft.chmod(0o700)
        draft.replace(folder / name)
    return folder


def environment(node: StormNode, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables to set; writes the programs, and chooses nimbus's port where there was none yet.

    The node need not run, and ``sparse run`` does not need it.
    """
    environ = os.environ if environ is None else environ
    folder = write(node.directory)
    path = [str(folder), str(Path(sys.executable).parent), environ.get("PATH", os.defpath)]
    return {
        "PATH": os.pathsep.join(path),
        "DOWNSPOUT_HOME": str(folders.home().absolute()),
        "STREAMPARSE_NIMBUS": f"{HOST}:{node.ports().nimbus}",
        "LEIN_ROOT": "1",  # streamparse refuses to run as root without it, for the sake of the real Leiningen
        "PYTHONPATH": python_path("src", environ),
    }


def exports(variables: Mapping[str, str]) -> str:
    """Return the variables as lines for a shell's ``eval``.

    >>> print(exports({"A": "x y"}))
    export A='x y'
    """
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())

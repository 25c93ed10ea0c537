"""A ``storm`` with the commands that streamparse and its users call.

``sparse run`` starts a topology by ``storm jar J org.apache.storm.flux.Flux --local …``. Flux 2 ignores ``--local`` and
submits to the configured cluster; here the topology runs locally, as users expect. ``kill``, ``list``, ``activate`` and
``deactivate`` call nimbus by Thrift, without starting a JVM.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from downspout.errors import DownspoutError, StormError
from downspout.formatting import columns
from downspout.settings import folders
from downspout.storm import local, nimbus
from downspout.storm.node import StormNode, default_directory
from downspout.storm.node_files import OURS, python_path
from downspout.system import files, jars
from downspout.system.java import java as find_java
from downspout.system.loopback import HOST

# --- the environment of streamparse ---

PROGRAMS = {"lein": "downspout.storm.lein", "storm": "downspout.storm.program", "sparse": "downspout.storm.sparse"}


def write(directory: Path) -> Path:
    """Write the programs into the directory of a node; return their folder."""
    folder = directory / "bin"
    files.own(directory, OURS)
    folder.mkdir(mode=0o700, exist_ok=True)
    for name, module in PROGRAMS.items():
        # -P: a project's files must not hide ours.
        text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m {module} "$@"\n'
        draft = folder / f".{name}.{os.getpid()}"
        draft.write_text(text, encoding="utf-8")
        draft.chmod(0o700)
        draft.replace(folder / name)
    return folder


def environment(node: StormNode, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Write the programs, choose nimbus's port if the node never ran, and return the variables to set.

    The node need not run; ``sparse run`` does not use it.
    """
    environ = os.environ if environ is None else environ
    folder = write(node.directory)
    path = [str(folder), str(Path(sys.executable).parent), environ.get("PATH", os.defpath)]
    return {
        "PATH": os.pathsep.join(path),
        "DOWNSPOUT_HOME": str(folders.home().absolute()),
        "STREAMPARSE_NIMBUS": f"{HOST}:{node.ports().nimbus}",
        "LEIN_ROOT": "1",  # without it, streamparse refuses to run as root because the real Leiningen would
        "PYTHONPATH": python_path("src", environ),
    }


def exports(variables: Mapping[str, str]) -> str:
    """Return the variables as lines for a shell's ``eval``.

    >>> print(exports({"A": "x y"}))
    export A='x y'
    """
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


# --- the program ---

FLUX = "org.apache.storm.flux.Flux"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(prog="storm", description=f"Storm {jars.STORM_VERSION} of Downspout.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add(commands, "version", "print the version", _version)
    for name, text in (("jar", "run a class of a jar, which submits a topology"), ("local", "run it in one JVM")):
        command = _add(commands, name, text, _jar if name == "jar" else _local)
        command.add_argument("jar", metavar="JAR", type=Path)
        command.add_argument("main", metavar="CLASS")
        if name == "local":
            command.add_argument("--local-ttl", type=int, default=20, metavar="SECONDS")
        command.add_argument("arguments", nargs=argparse.REMAINDER)
    _add(commands, "list", "list the topologies", _list)
    kill = _add(commands, "kill", "end a topology", _kill)
    kill.add_argument("name")
    kill.add_argument("-w", "--wait", type=int, metavar="SECONDS", help="between stopping spouts and ending workers")
    for name in ("activate", "deactivate"):
        _add(commands, name, f"{name} a topology's spouts", _switch).add_argument("name")
    return parser


def _add(commands: Any, name: str, text: str, handler: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text.capitalize() + ".")
    command.set_defaults(handler=handler)
    return command


def is_local(main: str, arguments: Sequence[str]) -> bool:
    """Return whether a ``storm jar`` call has Flux's option for a local run, in either spelling.

    >>> is_local(FLUX, ["--local", "x.yaml"]), is_local(FLUX, ["--remote", "x.yaml"]), is_local("a.B", ["--local"])
    (True, False, False)
    """
    return main == FLUX and any(argument in ("--local", "-l") for argument in arguments)


def sleep_s(arguments: Sequence[str], default: int) -> int:
    """Return Flux's ``--sleep`` in seconds, clamped: without ``-t`` streamparse passes the largest 64-bit number.

    >>> sleep_s(["--local", "--sleep", "12", "x.yaml"], 20), sleep_s(["-s", "9223372036854775807"], 20)
    (12, 9223372036854775)
    """
    for option, value in pairwise(arguments):
        if option in ("--sleep", "-s"):
            if not value.isdecimal():
                raise StormError(f"--sleep {value} is not a whole number of seconds", cure="--sleep 30")
            return min(int(value), local.SLEEP_S_MAX)
    return default


# --- commands ---


def _version(arguments: argparse.Namespace) -> int:
    print(f"Storm {jars.STORM_VERSION}")
    return 0


def _jar(arguments: argparse.Namespace) -> int:
    if is_local(arguments.main, arguments.arguments):
        try:
            return local.run(arguments.jar, arguments.main, arguments.arguments, sleep_s(arguments.arguments, 20))
        finally:
            _remove_flux_file(arguments.arguments)
    node = StormNode(default_directory())
    host, port = node.address
    _compare_versions(host, port)
    home, library = node.directory / "home", jars.resolve("storm")[0].parent
    command = [str(find_java()), *shlex.split(os.environ.get("STORM_JAR_JVM_OPTS", "")), f"-Dstorm.home={home}"]
    command += [
        f"-Dstorm.jar={arguments.jar.absolute()}",
        "-Dstorm.conf.file=",
        f"-Dstorm.log.dir={node.directory / 'logs'}",
    ]
    command += ["-Dlogfile.name=client.log", f"-Dlog4j.configurationFile={home / 'log4j2' / 'cluster.xml'}"]
    command += ["-cp", os.pathsep.join([f"{library}/*", str(arguments.jar.absolute()), str(home / "conf")])]
    command += [arguments.main, *arguments.arguments]
    return subprocess.run(command, env=folders.worker_environment(Path.cwd()), check=False).returncode


def _remove_flux_file(arguments: Sequence[str]) -> None:
    """Remove the file that streamparse wrote for this run and leaves in the temporary directory."""
    path = Path(arguments[-1])
    if path.parent == Path(tempfile.gettempdir()) and path.match("tmp*.yaml"):
        path.unlink(missing_ok=True)


def _local(arguments: argparse.Namespace) -> int:
    seconds = min(arguments.local_ttl, local.SLEEP_S_MAX)
    return local.run(arguments.jar, arguments.main, arguments.arguments, seconds)


def _compare_versions(host: str, port: int) -> None:
    versions = {each.version for each in nimbus.summary(host, port).nimbuses}
    if versions - {jars.STORM_VERSION, "VERSION_NOT_PROVIDED"}:
        raise StormError(
            f"Nimbus {host}:{port} is Storm {', '.join(sorted(versions))}, and this client is {jars.STORM_VERSION}",
            cure="`downspout storm stop`, then `downspout storm start`",
        )


def _list(arguments: argparse.Namespace) -> int:
    topologies = nimbus.summary(*StormNode(default_directory()).address).topologies
    rows = [("Topology_name", "Status", "Num_tasks", "Num_workers", "Uptime_secs", "Topology_Id")]
    rows += [(t.name, t.status, str(t.num_tasks), str(t.num_workers), str(t.uptime_secs), t.id) for t in topologies]
    print("\n".join(columns(rows, ())) if topologies else "No topologies running.")
    return 0


def _kill(arguments: argparse.Namespace) -> int:
    nimbus.kill(*StormNode(default_directory()).address, arguments.name, arguments.wait)
    print(f"Killed topology: {arguments.name}")
    return 0


def _switch(arguments: argparse.Namespace) -> int:
    address = StormNode(default_directory()).address
    with nimbus.changing(*address, arguments.name, arguments.command) as client:
        getattr(client, arguments.command)(name=arguments.name)
    print(f"{arguments.command.capitalize()}d topology: {arguments.name}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        return int(arguments.handler(arguments))
    except DownspoutError as error:
        print(f"downspout: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

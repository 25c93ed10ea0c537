"""A ``sparse`` that runs stock streamparse's, adapted to our Storm node.

In the environment of ``downspout storm shell`` it precedes the real program, which it runs unchanged after four steps.
They apply only if nimbus is that of our node:

* An error is raised if nimbus does not run; streamparse would show a traceback of Thrift's.
* The same holds if a topology to be killed does not run, or one to be submitted already does.
* Commands that query Storm's UI or log in by SSH, neither of which our node has, name what to use instead.
* A ``config.json`` made for a cluster (SSH, virtualenvs, workers by name) is replaced by one for this node.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from downspout.errors import DownspoutError, MissingExtraError, StormError
from downspout.storm import nimbus
from downspout.storm.node import NodeStatus, StormNode, default_directory
from downspout.storm.node_files import OURS
from downspout.system import files

ON_A_CLUSTER = frozenset({"submit", "kill", "list"})
WITH_CONFIG = ON_A_CLUSTER | {"run"}
INSTEAD = {
    "stats": "`downspout storm stats [TOPOLOGY]`",
    "worker_uptime": "`downspout storm status`, and `downspout storm stats [TOPOLOGY]`",
    "slot_usage": "`downspout storm status`, and `downspout storm stats [TOPOLOGY]`",
    "tail": "`downspout storm logs [TOPOLOGY]`",
    "remove_logs": "`downspout storm logs`, which says where they are",
    "update_virtualenv": "nothing: components run with the Python of this shell",
}
"""Replacements for commands that need Storm's UI or SSH."""
FOR_OUR_NODE: dict[str, Any] = {"use_ssh_for_nimbus": False, "workers": ["127.0.0.1"]}
OPTIONS_FOR_OUR_NODE = {"use_virtualenv": False, "install_virtualenv": False}


def check(arguments: Sequence[str]) -> None:
    """Raise StormError if a command cannot work with our Storm."""
    command = _command(arguments)
    if command in INSTEAD and _is_ours():
        raise StormError(
            f"`sparse {command}` asks Storm's UI or logs in by SSH, and this Storm has neither", cure=INSTEAD[command]
        )
    if command not in ON_A_CLUSTER:
        return
    node = StormNode(default_directory())
    status, address = node.status(), os.environ.get("STREAMPARSE_NIMBUS")
    if address is not None and address != status.nimbus:
        raise_if_moved(status, address)
        return
    _check_running(node, status, arguments)
    _check_topology(command, arguments, node.address)


def _check_running(node: StormNode, status: NodeStatus, arguments: Sequence[str]) -> None:
    if status.state != "running" and (status := node.steady_status()).state != "running":
        raise StormError(
            f"Storm is {status.condition} ({node.directory}), so `sparse {arguments[0]}` cannot reach a nimbus",
            cure=status.cure,
        )


def _check_topology(command: str, arguments: Sequence[str], address: tuple[str, int]) -> None:
    """Raise if a topology that is to be killed does not run, or one that is to be submitted does."""
    parser = argparse.ArgumentParser(prog=f"sparse {command}", add_help=False)
    parser.add_argument("-n", "--name")
    parser.add_argument("-N", "--override_name")
    parser.add_argument("-f", "--force", action="store_true")
    given, _ = parser.parse_known_args(arguments[1:])
    if command == "list" or (name := given.override_name or given.name) is None:
        return  # streamparse takes the project's only topology, or reports that it has several
    found = next((each for each in nimbus.summary(*address).topologies if each.name == name), None)
    if command == "kill" and found is None:
        raise StormError(f"There is no topology {name}", cure="`sparse list`, which names what runs")
    if command == "submit" and found is not None and not given.force:
        raise StormError(
            f"{name} is running already ({found.status})",
            cure=f"`sparse kill -n {name}` first, or `sparse submit --force`, which does it",
        )


def _command(arguments: Sequence[str]) -> str:
    """Return the command; empty if the arguments ask for help."""
    return arguments[0] if arguments and not {"-h", "--help"}.intersection(arguments) else ""


def _is_ours() -> bool:
    """Return whether the shell's nimbus is on this machine, as that of our node is."""
    return os.environ.get("STREAMPARSE_NIMBUS", "127.0.0.1:").startswith("127.0.0.1:")


def adapted(arguments: Sequence[str]) -> list[str]:
    """Replace the project's configuration in the arguments if it does not fit our node."""
    given = list(arguments)
    if _command(given) not in WITH_CONFIG or not _is_ours():
        return given
    parser = argparse.ArgumentParser(prog=f"sparse {given[0]}", add_help=False)
    parser.add_argument("--config", default="config.json")
    known, others = parser.parse_known_args(given[1:])
    path = Path(known.config)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        envs = {name: _for_our_node(env) for name, env in found["envs"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return given  # streamparse reports the error
    if envs == found["envs"]:
        return given
    directory = default_directory()
    files.own(directory, OURS)
    made = directory / "config.json"
    files.write(made, json.dumps({**found, "envs": envs}, indent=2))
    print(f"downspout: this Storm needs no SSH and no virtualenvs: {made} replaces {path}", file=sys.stderr)
    return [given[0], "--config", str(made), *others]


def _for_our_node(env: dict[str, Any]) -> dict[str, Any]:
    return {
        **env,
        **FOR_OUR_NODE,
        "nimbus": env.get("nimbus") or "127.0.0.1",
        "options": {**env.get("options", {}), **OPTIONS_FOR_OUR_NODE},
    }


def raise_if_moved(status: NodeStatus, address: str) -> None:
    """Raise if the shell is older than the node's port; an address on another machine is the user's choice."""
    if status.state == "running" and address.startswith("127.0.0.1:"):
        raise StormError(
            f"This shell expects nimbus at {address}, but it is now at {status.nimbus}",
            cure='leave the shell and enter it again, or `eval "$(downspout storm env)"`',
        )


def main(argv: Sequence[str] | None = None) -> int:  # noqa: RET503 (execv does not return)
    """Check, then become the real ``sparse``, which does not return."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        check(arguments)
        real = shutil.which("sparse", path=str(Path(sys.executable).parent))
        if real is None:
            raise MissingExtraError(
                f"There is no sparse beside {sys.executable}", cure="`pip install streamparse` into that environment"
            )
        arguments = adapted(arguments)
    except DownspoutError as error:
        print(f"downspout: {error}", file=sys.stderr)
        return error.exit_code
    os.execv(real, [real, *arguments])


if __name__ == "__main__":
    sys.exit(main())

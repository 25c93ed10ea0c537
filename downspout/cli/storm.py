"""``downspout storm``: run a single-node Storm, and the environment in which stock streamparse works with it.

``start``, ``stop``, ``status`` and ``logs`` control the node; ``shell`` and ``env`` put our ``lein`` and ``storm`` on
the PATH; ``stats`` shows nimbus's counters.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout.cli.arguments import add_actions, add_nimbus, add_requirements, exit_codes, place, sentence
from downspout.errors import ConfigError, RunsAlready, StormError
from downspout.formatting import counted

if TYPE_CHECKING:
    from downspout.storm.node import NodeStatus, StormNode
    from downspout.storm.stats import Counters

Handler = Callable[[argparse.Namespace], int]


def add_parser(commands: Any) -> None:
    """Add the command with its subcommands."""
    parser = commands.add_parser("storm", help="run a single-node Storm for `sparse run` and `sparse submit`")
    actions = add_actions(parser)
    start = _add(actions, "start", _start, "start ZooKeeper, nimbus and a supervisor, and wait until they answer")
    start.add_argument("--port", type=_port, help="port of nimbus (default: the one it had before, or any free one)")
    start.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting for storm.yaml; may be repeated",
    )
    stop = _add(actions, "stop", _stop, "stop topologies, supervisor, nimbus and ZooKeeper, in this order")
    stop.add_argument(
        "--wait", type=_natural, metavar="SECONDS", help="time for sinks to flush and spouts to commit (default: 12)"
    )
    status = _add(actions, "status", _status, "show whether Storm is running", _1="it does not")
    status.add_argument("--json", action="store_true", help="print JSON")
    logs = _add(actions, "logs", _logs, "show where the logs are, and the last lines of those with errors")
    logs.add_argument("topology", nargs="?", help="only the workers of this topology")
    logs.add_argument("--lines", type=int, default=20, metavar="N", help="lines of each log (default: 20)")
    stats = _add(actions, "stats", _stats, "show nimbus's counts for each component, and the lag from Kafka", 4)
    stats.add_argument("topology", nargs="?", help="name of the topology (default: all running ones)")
    stats.add_argument("--json", action="store_true", help="print JSON")
    add_nimbus(stats)
    rebalance = _add(actions, "rebalance", _rebalance, "change the number of workers and threads of a topology")
    rebalance.add_argument("topology")
    rebalance.add_argument(
        "--workers", type=_count, metavar="N", help="number of worker processes (default: as before)"
    )
    rebalance.add_argument(
        "--par",
        action="append",
        default=[],
        metavar="COMPONENT=N",
        help="number of threads of a component, at most its tasks; may be repeated",
    )
    rebalance.add_argument(
        "--wait",
        type=_natural,
        metavar="SECONDS",
        help="time for tuples in flight (default: the topology's message timeout)",
    )
    env = _add(actions, "env", _env, 'print the environment of `downspout storm shell`: eval "$(downspout storm env)"')
    shell = _add(actions, "shell", _shell, "run a shell, or a command, in which `sparse` finds lein, storm and nimbus")
    shell.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="command to run (default: $SHELL)"
    )
    bundle = _add(actions, "bundle", _bundle, "pack all packages that a topology imports, for workers without network")
    bundle.add_argument("topology", help="name of the topology, as for `sparse submit -n`")
    add_requirements(bundle)
    bundle.add_argument("--output", type=place, metavar="FILE", help="name of the archive (default: NAME.tar.gz)")
    for each in (start, stop, status, logs, stats, rebalance, env, shell):
        each.add_argument("--dir", type=place, help="directory of the node (default: .downspout/storm)")


def _add(actions: Any, name: str, action: Handler, text: str, *codes: int, **own: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=text, description=sentence(text), epilog=exit_codes(9, *codes, **own)
    )
    parser.set_defaults(handler=action)
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 65535")
    return int(text)


def _node(arguments: argparse.Namespace, **options: Any) -> StormNode:
    from downspout.storm.node import StormNode, default_directory

    return StormNode(arguments.dir or default_directory(), **options)


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Return ``--set`` options for storm.yaml; values are parsed as JSON if possible.

    >>> parse_settings(["topology.workers=2", "ui.title=x y"])
    {'topology.workers': 2, 'ui.title': 'x y'}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair} has no value", cure="--set KEY=VALUE")
        try:
            found[key.strip()] = json.loads(value)
        except ValueError:
            found[key.strip()] = value
    return found


# --- the node ---


def _start(arguments: argparse.Namespace) -> int:
    node = _node(arguments, port=arguments.port, detached=True, settings=parse_settings(arguments.settings))
    before = node.status()
    if before.state == "silent":
        before = node.steady_status()
    if before.state == "running":
        return _runs_already(before, arguments.port)
    if before.state == "silent":
        raise StormError(f"Storm is {before.condition} ({node.directory})", cure=before.cure)
    if before.state == "broken":
        print(f"Storm is {before.condition}. Replacing it; its topologies are lost, submit them again", flush=True)
    try:
        status = node.start().status()
    except RunsAlready:
        return _runs_already(node.status(), arguments.port)
    print(f"Storm {status.version} is running, with nimbus at {status.nimbus} and logs in {node.directory / 'logs'}")
    if before.ports is not None and before.nimbus != status.nimbus:
        print(f"Nimbus was at {before.nimbus} before: leave and re-enter any `downspout storm shell`")
    return 0


def _runs_already(status: NodeStatus, port: int | None) -> int:
    if port is not None and status.nimbus.rpartition(":")[2] != str(port):
        raise StormError(
            f"Storm is already running, with nimbus at {status.nimbus}",
            cure=f"`downspout storm stop`, then `downspout storm start --port {port}`",
        )
    print(f"Storm is already running, with nimbus at {status.nimbus}")
    return 0


def _stop(arguments: argparse.Namespace) -> int:
    from downspout.storm.node import KILL_WAIT_S

    wait_s = KILL_WAIT_S if arguments.wait is None else arguments.wait

    def announce(names: list[str]) -> None:
        print(f"{' and '.join(sorted(names))}: waiting {wait_s} s for tuples in flight to be committed", flush=True)

    was_running = _node(arguments).stop(wait_s, announce)
    print("Storm is stopped" if was_running else "Storm was not running")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from downspout.storm.node_files import stuck_slots

    status = _node(arguments).status()
    processes = status.alive
    stuck = stuck_slots(status.directory / "logs" / "supervisor.log") if status.daemons is not None else []
    if arguments.json:
        facts: dict[str, Any] = {"state": status.state, "directory": str(status.directory)}
        if status.daemons is not None:
            facts |= {"nimbus": status.nimbus, "version": status.version, "processes": processes}
            facts |= {"gone": status.gone, "trouble": status.trouble}
            facts |= {"stuck_slots": [asdict(each) for each in stuck]}
        print(json.dumps(facts))
    elif status.daemons is None:
        print(f"Storm is {status.state} ({status.directory})")
    else:
        shown = ", ".join(f"{name} {pid}" for name, pid in processes.items()) or "no daemon yet"
        where = f"with nimbus at {status.nimbus} ({shown}; {status.directory})"
        if status.state == "broken":
            where = f"(still running: {shown if processes else 'workers'}; {status.directory})"
        print(f"Storm {status.version} is {status.condition}{' ' if status.state == 'broken' else ', '}{where}")
        if status.state in ("silent", "broken"):
            print(f"Try: {status.cure}")
        for each in stuck:
            print(each)
    return 0 if status.state == "running" else 1


def _logs(arguments: argparse.Namespace) -> int:
    from downspout.storm.node_logs import show

    print(show(_node(arguments).directory / "logs", arguments.topology, arguments.lines))
    return 0


def _stats(arguments: argparse.Namespace) -> int:
    from downspout.storm import stats

    address, counters = nimbus_of(arguments)
    wanted = [arguments.topology] if arguments.topology else stats.names(*address)
    found = counters.whole([stats.collect(*address, name) for name in wanted])
    if arguments.json:
        print(json.dumps([each.as_dict() for each in found], indent=2))
    else:
        print("\n".join(stats.render(each) for each in found) or "No topology is running")
    return 0


def nimbus_of(arguments: argparse.Namespace) -> tuple[tuple[str, int], Counters]:
    """Return the address of the nimbus of ``--dir`` or ``--nimbus``, and its stored counters."""
    from downspout.storm import stats

    if arguments.nimbus is not None:
        return arguments.nimbus, stats.Counters(None)
    node = _node(arguments)
    return node.address, stats.Counters(node.directory / "counters.json")


def _rebalance(arguments: argparse.Namespace) -> int:
    from downspout.storm import nimbus

    executors = {}
    for pair in arguments.par:
        name, _, number = pair.rpartition("=")
        if not name or not number.isdecimal() or not int(number):
            raise ConfigError(f"--par {pair} needs a component and a number", cure="--par parse=4")
        executors[name] = int(number)
    nimbus.rebalance(
        *_node(arguments).address, arguments.topology,
        wait_s=arguments.wait, workers=arguments.workers, executors=executors,
    )  # fmt: skip
    print(f"{arguments.topology} is being rebalanced; `downspout storm stats {arguments.topology}` shows its progress")
    return 0


# --- the environment ---


def _env(arguments: argparse.Namespace) -> int:
    from downspout.storm.program import environment, exports

    print(exports(environment(_node(arguments))))
    return 0


def _shell(arguments: argparse.Namespace) -> int:
    from downspout.storm.program import environment

    command = arguments.arguments[1:] if arguments.arguments[:1] == ["--"] else arguments.arguments
    command = command or [os.environ.get("SHELL", "/bin/sh")]
    try:
        return subprocess.run(command, env={**os.environ, **environment(_node(arguments))}, check=False).returncode
    except OSError as error:
        raise StormError(f"{command[0]} cannot be run: {error.strerror}", cure="another command, or none") from None


def _bundle(arguments: argparse.Namespace) -> int:
    from downspout.engine.load import component_modules
    from downspout.storm.lein import write_bundle
    from downspout.system.packaging import requirements

    name = arguments.topology
    if not Path("topologies", f"{name}.py").is_file():
        raise ConfigError(f"There is no topologies/{name}.py here", cure="the root of a project, and a topology's name")
    target = arguments.output or Path(f"{name}.tar.gz")
    modules = component_modules(f"topologies/{name}.py")
    packed = write_bundle(target, name, [*requirements(Path(), name), *arguments.extra], modules)
    print(f"{target}: {counted(len(packed), 'distribution')}, {target.stat().st_size / 1e6:,.0f} MB")
    print(f"Unpack it in virtualenv_root on each worker; `sparse submit` finds {name}/bin/streamparse_run there")
    return 0

"""``downspout spark bundle`` and ``downspout spark submit``: a topology on a Spark cluster."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from downspout.cli.arguments import RUN_CODES, add_requirements, exit_codes, place
from downspout.errors import ConfigError
from downspout.formatting import counted


def add_parsers(actions: Any) -> None:
    """Add both to the actions of ``downspout spark``."""
    bundle = actions.add_parser(
        "bundle",
        help="pack all that executors import into an archive",
        description="Pack Downspout, all that it needs (as it is installed here) and this project's spouts/, bolts/, "
        "topologies/ and src/ into one archive for Spark's executors. Python and PySpark are not in it.",
        epilog=exit_codes(),
    )
    bundle.add_argument(
        "topology",
        nargs="?",
        type=place,
        metavar="TOPOLOGY",
        help="file of the topology, which gives the archive its name; virtualenvs/NAME.txt is packed too",
    )
    add_requirements(bundle)
    bundle.add_argument(
        "--add",
        dest="added",
        action="append",
        default=[],
        type=place,
        metavar="PATH",
        help="also pack this file or folder of the project; may be repeated",
    )
    bundle.add_argument("-o", "--output", type=place, metavar="FILE", help="name of the archive (default: NAME.tar.gz)")
    bundle.set_defaults(handler=_bundle)
    submit = actions.add_parser(
        "submit",
        help="run a topology on a Spark cluster, with spark-submit",
        usage="downspout spark submit TOPOLOGY --master URL [--bundle FILE] [--python NAME] "
        "[options of `downspout spark run`] [-- options of spark-submit]",
        description="Run `downspout spark run` with PySpark's spark-submit. The driver is this machine.",
        epilog=exit_codes(*RUN_CODES, 9),
    )
    _add_own(submit)
    submit.add_argument("arguments", nargs=argparse.REMAINDER, metavar="TOPOLOGY …", help=argparse.SUPPRESS)
    submit.set_defaults(handler=_submit)


def _add_own(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--master", metavar="URL", help="address of the cluster: spark://host:7077")
    parser.add_argument(
        "--bundle",
        type=place,
        metavar="FILE",
        help="archive of `downspout spark bundle`; without it, executors must have all that is needed",
    )
    parser.add_argument("--python", metavar="NAME", help="name of the Python program on the workers, and here")


def _bundle(arguments: argparse.Namespace) -> int:
    from downspout.engine.load import component_modules
    from downspout.spark.cluster import bundle
    from downspout.system.packaging import requirements

    topology: Path | None = arguments.topology
    if topology is not None and not topology.is_file():
        raise ConfigError(f"There is no {topology}", cure="the path of a topology's .py file")
    project = Path() if topology is None else topology.resolve().parent.parent
    name = project.resolve().name if topology is None else topology.stem
    target = arguments.output or Path(f"{name}.tar.gz")
    modules = [] if topology is None else component_modules(str(topology))
    extra = [*requirements(project, name), *arguments.extra]
    packed = bundle.write(target, project, extra=extra, added=arguments.added, modules=modules)
    print(f"{target}: {counted(len(packed), 'distribution')}, {target.stat().st_size / 1e6:,.0f} MB")
    print(f"Run it: downspout spark submit {topology or 'TOPOLOGY'} --master spark://HOST:7077 --bundle {target}")
    return 0


def _submit(arguments: argparse.Namespace) -> int:
    from downspout.spark.cluster import submit

    own, run, spark_options = split(arguments)
    if own.master is None:
        raise ConfigError("--master is missing: where the cluster is", cure="--master spark://HOST:7077")
    name = _checked(run)
    script = Path(__file__).with_name("submitted.py")
    words = submit.command(script, run, name=name, master=own.master, bundle=own.bundle, spark_options=spark_options)
    return submit.run(words, submit.environment(own.python))


def split(arguments: argparse.Namespace) -> tuple[argparse.Namespace, list[str], list[str]]:
    """Return our own options, the arguments of ``downspout spark run``, and spark-submit's options."""
    rest: list[str] = arguments.arguments
    cut = rest.index("--") if "--" in rest else len(rest)
    # Ours may stand before the topology or anywhere behind it, up to ``--``.
    parser = argparse.ArgumentParser(prog="downspout spark submit", add_help=False, allow_abbrev=False)
    _add_own(parser)
    before = {key: getattr(arguments, key) for key in ("master", "bundle", "python")}
    own, run = parser.parse_known_args(rest[:cut], argparse.Namespace(**before))
    return own, run, rest[cut + 1 :]


def _checked(run: Sequence[str]) -> str:
    """Return the topology's name; what ``downspout spark run`` would not take is said now, before Spark starts."""
    from downspout.cli import build_parser

    target = build_parser().parse_args(["spark", "run", *run]).target
    return Path(target.partition(":")[0]).stem if target.endswith(".py") else target

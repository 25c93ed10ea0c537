"""``downspout offsets``: hand a topic over between a spout and Spark, without a record lost or processed twice.

``export`` prints where a spout's group stands as options of a Spark source. ``import`` moves the group to where a
Spark checkpoint stands; it only says what it would do, until ``--yes`` is given. Results go to stdout, notes to
stderr; with ``--json`` each command prints one JSON value, notes included.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from downspout.cli.access import add_access, open_cluster
from downspout.errors import ConfigError, coordinates
from downspout.wording import counted

if TYPE_CHECKING:
    from downspout.kafka.handover import Move, Standing
    from downspout.kafka.port import TopicPartition
    from downspout.spark.checkpoint import Checkpoint

EARLIEST = -2
"""What a Spark source takes for the beginning of a partition."""
RANGES_SHOWN = 3


def add_parser(commands: Any) -> None:
    """Add the command with its subcommands."""
    parser = commands.add_parser("offsets", help="hand a topic over between a spout and Spark")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    export = _add(actions, "export", _export, "print where a spout's group stands, as options of a Spark source")
    export.add_argument("--to", choices=["spark"], required=True, help="who goes on")
    export.add_argument(
        "--for", dest="source", choices=["downspout", "jvm"], default="downspout",
        help="which source reads: ours (default), or Spark's own connector, which cannot leave ranges out",
    )  # fmt: skip
    move = _add(actions, "import", _import, "move a spout's group to where a Spark query stands")
    move.add_argument(
        "--from-checkpoint", dest="checkpoint", required=True, metavar="DIR", help="the query's checkpointLocation"
    )
    move.add_argument(
        "--topology-id", default="", metavar="ID",
        help="who commits (default: who did before); only kafka.start without UNCOMMITTED_ asks for it",
    )  # fmt: skip
    move.add_argument("--force", action="store_true", help="move a group back, too, or to a topic created again")
    move.add_argument("--yes", action="store_true", help="do it; without, only say what would be done")


def _add(actions: Any, name: str, action: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text.capitalize() + ".")
    parser.add_argument("group", metavar="GROUP", help="kafka.group of the spout; by default the topology's name")
    parser.add_argument("--topic", action="append", default=[], help="only this topic; may be given several times")
    add_access(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=action)
    return parser


def _print(arguments: argparse.Namespace, facts: dict[str, Any], lines: Iterable[str], notes: Sequence[str]) -> None:
    if arguments.json:
        print(json.dumps({**facts, "notes": list(notes)}, indent=2))
        return
    print("\n".join(lines))
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


# --- export ---


def _export(arguments: argparse.Namespace) -> int:
    from downspout.kafka.handover import check_standings, standings
    from downspout.spark.source import ranges, skips

    cluster, group = open_cluster(arguments), arguments.group
    found = standings(cluster, group, arguments.topic)
    if all(standing.offset is None for standing in found):
        where = f" for {', '.join(arguments.topic)}" if arguments.topic else ""
        raise ConfigError(
            f"group {group} has committed nothing{where}", cure="kafka.group of the spout, and --bootstrap"
        )
    check_standings(group, found)
    if arguments.source == "jvm":
        refuse_gaps(found)
    starting = ranges.to_json({s.tp: EARLIEST if s.offset is None else s.offset for s in found})
    ids = {standing.tp.topic: standing.topic_id for standing in found}
    skipped = skips.to_json({standing.tp: standing.told.done for standing in found}, ids)
    options = {"subscribe": ",".join(ids), "startingOffsets": json.dumps(starting)}
    options |= {skips.NAME: json.dumps(skipped)} if skipped else {}
    if arguments.source == "jvm":  # its default would deliver what aborted transactions wrote; the spout's does not
        options |= {"kafka.isolation.level": "read_committed"}
    members = cluster.group_members(group)
    facts = {
        "group": group, "for": arguments.source, "members": list(members), "options": options,
        "startingOffsets": starting, "skipOffsets": skipped, "topic_ids": ids,
    }  # fmt: skip
    _print(arguments, facts, [f"{name} = {value}" for name, value in options.items()], export_notes(found, members))
    return 0


def refuse_gaps(found: Iterable[Standing]) -> None:
    """Raise where something is done beyond a commit, which Spark's own connector would read again.

    Raises:
        ConfigError: so it is.
    """
    gaps = [
        f"{standing.place} has {_ranges(standing.told.done)} done beyond it" for standing in found if standing.told.done
    ]
    if gaps:
        raise ConfigError(
            f"{'; '.join(gaps)}: Spark's own connector cannot leave them out and would process them again",
            cure="start the topology and end it in order (Ctrl-C or SIGTERM), which drains, and export again; or read "
            'with format("downspout"), whose skipOffsets leaves them out',
        )


def _ranges(done: Sequence[tuple[int, int]]) -> str:
    """Return ranges for people, both ends included.

    >>> _ranges([(5, 9), (12, 13)])
    '5–8, 12'
    """
    shown = [f"{start}–{end - 1}" if end - start > 1 else f"{start}" for start, end in done[:RANGES_SHOWN]]
    more = len(done) - len(shown)
    return ", ".join(shown) + (f" and {counted(more, 'more range')}" if more else "")


def export_notes(found: Sequence[Standing], members: Sequence[str]) -> list[str]:
    """Return what whoever goes on should know."""
    notes = []
    if members:
        notes.append(
            f"{', '.join(members)} still in the group: what is processed from now on would be processed by Spark, too; "
            "stop the topology and export again"
        )
    if without := [standing.place for standing in found if standing.offset is None]:
        notes.append(f"no commit for {', '.join(without)}: read from the beginning")
    if gone := [
        f"{s.place} (the log begins at {s.begin})" for s in found if s.offset is not None and s.offset < s.begin
    ]:
        notes.append(f"gone from Kafka before it was processed, unless it is left out: {', '.join(gone)}")
    return notes


# --- import ---


def _import(arguments: argparse.Namespace) -> int:
    from downspout.kafka.handover import commit_moves, plan_moves
    from downspout.spark.checkpoint import read_checkpoint

    checkpoint = read_checkpoint(arguments.checkpoint)
    targets = {tp: end for tp, end in checkpoint.offsets.items() if not arguments.topic or tp.topic in arguments.topic}
    if not targets:
        topics = ", ".join(sorted({tp.topic for tp in checkpoint.offsets})) or "none yet"
        raise ConfigError(
            f"{checkpoint.directory} holds no such topic: its topics are {topics}", cure="another --topic"
        )
    cluster = open_cluster(arguments)
    moves = plan_moves(cluster, arguments.group, targets, topology_id=arguments.topology_id, force=arguments.force)
    if arguments.yes:
        commit_moves(cluster, arguments.group, moves)
    facts = {"dry_run": not arguments.yes, "group": arguments.group, **import_facts(checkpoint, targets, moves)}
    lines = render_import(checkpoint, targets, moves, done=arguments.yes)
    _print(arguments, facts, lines, import_notes(checkpoint, moves, arguments.topology_id))
    return 0


def import_facts(checkpoint: Checkpoint, targets: dict[TopicPartition, int], moves: Sequence[Move]) -> dict[str, Any]:
    """Return what was or would be committed, as JSON values."""
    return {
        "checkpoint": {
            "directory": str(checkpoint.directory), "query": checkpoint.query, "batch": checkpoint.batch,
            "unfinished": checkpoint.unfinished, "other_sources": checkpoint.others,
        },
        "moves": [
            {"topic": move.tp.topic, "partition": move.tp.partition, "from": move.before, "to": move.to,
             "in_checkpoint": move.asked if move.named else None}
            for move in moves
        ],
        "unchanged": len(targets) - sum(move.named for move in moves),
    }  # fmt: skip


def render_import(
    checkpoint: Checkpoint, targets: dict[TopicPartition, int], moves: Sequence[Move], *, done: bool
) -> list[str]:
    """Return what was or would be committed."""
    stands = "where it started" if checkpoint.batch is None else f"at the end of batch {checkpoint.batch}"
    moved = {move.tp for move in moves}
    lines = [f"the query stands {stands}", *map(_render_move, moves)]
    lines += [f"{coordinates(*tp)}: is at {end} already" for tp, end in sorted(targets.items()) if tp not in moved]
    lines.append(f"{counted(len(moves), 'partition')} {'moved' if done else 'would be moved'}")
    return lines if done else [*lines, "nothing was done: --yes does it"]


def _render_move(move: Move) -> str:
    way = f"starts at {move.to}" if move.before is None else f"{move.before} → {move.to}"
    why = " (back)" if move.is_back else ""
    if not move.named:
        why = " (not in the checkpoint: its beginning)"
    elif move.to != move.asked:
        why = f" (the query stands at {move.asked}; the spout has done what lies between)"
    return f"{coordinates(*move.tp)}: {way}{why}"


def import_notes(checkpoint: Checkpoint, moves: Sequence[Move], topology_id: str) -> list[str]:
    """Return what whoever starts the spout should know."""
    notes = []
    if checkpoint.unfinished is not None:
        ends = ", ".join(coordinates(tp.topic, tp.partition, end) for tp, end in sorted(checkpoint.planned.items()))
        notes.append(
            f"batch {checkpoint.unfinished}{f', up to {ends},' if ends else ''} was begun and is not finished: the "
            "spout does it again, as Spark would. Where the query's sink may hold some of it already and does not tell "
            "a record by its origin, let the query finish the batch first (trigger availableNow), and import then"
        )
    if checkpoint.others:
        notes.append(f"{counted(checkpoint.others, 'source')} of the query not Kafka's: left out")
    if moves and not topology_id and all(move.before is None for move in moves):
        notes.append(
            "the group has no commits that tell its topology: the spout starts here under an UNCOMMITTED_… kafka.start "
            "(the default); for another, give --topology-id"
        )
    return notes

"""``downspout offsets``: move a group, and hand a topic over between a spout and Spark, without a record lost.

``seek`` and ``delete`` are in :mod:`downspout.cli.offsets_seek`. ``export`` prints the position of a spout's group as
options of a Spark source, or as a file for ``seek``. ``import`` moves the group to the position of a Spark checkpoint,
or of an old spout with offsets in ZooKeeper; it changes nothing without ``--yes``. Results go to stdout, notes to
stderr; with ``--json`` each command prints one JSON value, notes included.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from downspout.cli.access import add_access, add_store, nothing_committed, open_groups
from downspout.cli.arguments import add_actions, exit_codes, sentence
from downspout.cli.offsets_seek import (
    NOTHING_CHANGED,
    add_delete,
    add_seek,
    delete,
    export_text,
    plan_facts,
    render_plan,
    seek,
)
from downspout.cli.terminal import printable
from downspout.errors import ConfigError, coordinates
from downspout.formatting import counted, seconds_of

if TYPE_CHECKING:
    from downspout.kafka.port import Cluster, TopicPartition
    from downspout.offsets.group_offsets import Move, Standing
    from downspout.offsets.seek_targets import Place
    from downspout.spark.checkpoint import Checkpoint

EARLIEST = -2  # The beginning of a partition, for a Spark source
RANGES_SHOWN = 3


def add_parser(commands: Any) -> None:
    """Add the command with its subcommands."""
    parser = commands.add_parser("offsets", help="move and delete a group's offsets; hand a topic to Spark and back")
    actions = add_actions(parser)
    export = _add(actions, "export", _export, "print the position of a spout's group", several=True)
    export.add_argument(
        "--to", choices=["spark", "csv", "json"], required=True,
        help="options of a Spark source; or a file for `offsets seek`: Kafka's CSV, or JSON, which also holds the "
        "offsets done beyond the commits",
    )  # fmt: skip
    export.add_argument(
        "--for", dest="source", choices=["downspout", "jvm"], default="downspout",
        help="the source that will read: Downspout's (default), or Spark's own connector, which has no skipOffsets",
    )  # fmt: skip
    add_seek(_add(actions, "seek", _seek, "move a group to other offsets", several=True, codes=(4, 7)))
    add_delete(_add(actions, "delete", _delete, "delete what a group has committed, or the group", codes=(4,)))
    move = _add(
        actions,
        "import",
        _import,
        "move a spout's group to the position of a Spark query, or of a Storm spout that keeps its offsets in "
        "ZooKeeper",
    )
    source = move.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--from-checkpoint", dest="checkpoint", metavar="DIR",
        help="the query's checkpointLocation: a folder here, or in a bucket (s3a://…)",
    )  # fmt: skip
    source.add_argument(
        "--from-zookeeper", dest="zookeeper", metavar="HOSTS/ROOT/ID",
        help="the nodes of a Storm spout for Kafka 0.8, or of Trident: zk1:2181,zk2:2181/zkRoot/id",
    )  # fmt: skip
    add_zookeeper(move)
    move.add_argument(
        "--topology-id", default="", metavar="ID",
        help="topology id to commit under (default: that of the last commit); matters only if kafka.start does not "
        "begin with UNCOMMITTED_",
    )  # fmt: skip
    move.add_argument(
        "--force", action="store_true", help="also move a group back, or to a topic that was created again"
    )
    move.add_argument("--yes", action="store_true", help="do it; without --yes, only show what would be done")


def _add(
    actions: Any,
    name: str,
    action: Callable[[argparse.Namespace], int],
    text: str,
    *,
    several: bool = False,
    codes: tuple[int, ...] = (4, 6),
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=text, description=sentence(text), epilog=exit_codes(*codes)
    )
    parser.add_argument(
        "group", metavar="GROUP", nargs="+" if several else None,
        help="kafka.group of the spout, which is the topology's name unless it is set",
    )  # fmt: skip
    parts = "" if name == "import" else ", or these partitions of it (orders:0,2)"
    parser.add_argument("--topic", action="append", default=[], help=f"only this topic{parts}; may be repeated")
    add_access(parser)
    add_store(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=action)
    return parser


def _print(arguments: argparse.Namespace, facts: dict[str, Any], lines: Iterable[str], notes: Sequence[str]) -> None:
    if arguments.json:
        print(json.dumps({**facts, "notes": list(notes)}, indent=2))
        return
    print("\n".join(map(printable, lines)))
    for note in notes:
        print(f"note: {printable(note)}", file=sys.stderr)


def _seek(arguments: argparse.Namespace) -> int:
    _print(arguments, *seek(arguments))
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    _print(arguments, *delete(arguments))
    return 0


# --- export ---


def _export(arguments: argparse.Namespace) -> int:
    from downspout.offsets.group_offsets import check_standings, standings
    from downspout.spark.source_offsets import SKIP_OFFSETS, skips_json, to_json

    if arguments.to != "spark":
        text, notes = export_text(arguments)
        print(text)
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
        return 0
    if len(arguments.group) > 1:
        raise ConfigError("--to spark takes one group", cure="a Spark source continues one; --to csv takes several")
    if some := [topic for topic in arguments.topic if ":" in topic]:
        raise ConfigError(
            f"--topic {some[0]}: --to spark takes whole topics",
            cure="the topic's name alone; --to csv takes partitions",
        )
    cluster, (group,) = open_groups(arguments), arguments.group
    found = standings(cluster, group, arguments.topic)
    if all(standing.offset is None for standing in found):
        raise nothing_committed(arguments, group)
    check_standings(group, found)
    if arguments.source == "jvm":
        refuse_gaps(found)
    starting = to_json({s.tp: EARLIEST if s.offset is None else s.offset for s in found})
    ids = {standing.tp.topic: standing.topic_id for standing in found}
    skipped = skips_json({standing.tp: standing.metadata.done for standing in found}, ids)
    options = {"subscribe": ",".join(ids), "startingOffsets": json.dumps(starting)}
    options |= {SKIP_OFFSETS: json.dumps(skipped)} if skipped else {}
    if arguments.source == "jvm":  # its default would deliver records of aborted transactions; the spout's does not
        options |= {"kafka.isolation.level": "read_committed"}
    members = cluster.group_members(group)
    facts = {
        "group": group, "for": arguments.source, "members": list(members), "options": options,
        "startingOffsets": starting, "skipOffsets": skipped, "topic_ids": ids,
    }  # fmt: skip
    _print(arguments, facts, [f"{name} = {value}" for name, value in options.items()], export_notes(found, members))
    return 0


def refuse_gaps(found: Iterable[Standing]) -> None:
    """Raise if offsets are done beyond a commit: Spark's own connector would read them again."""
    gaps = [
        f"{standing.place} has {_ranges(standing.metadata.done)} done beyond it"
        for standing in found
        if standing.metadata.done
    ]
    if gaps:
        raise ConfigError(
            f"{'; '.join(gaps)}: Spark's own connector cannot leave them out and would process them again",
            cure="start the topology and stop it cleanly (Ctrl-C or SIGTERM), which drains it, and export again; or "
            "read "
            'with format("downspout"), whose skipOffsets leaves them out',
        )


def _ranges(done: Sequence[tuple[int, int]]) -> str:
    """Return ranges as text, with inclusive ends.

    >>> _ranges([(5, 9), (12, 13)])
    '5–8, 12'
    """
    shown = [f"{start}–{end - 1}" if end - start > 1 else f"{start}" for start, end in done[:RANGES_SHOWN]]
    more = len(done) - len(shown)
    return ", ".join(shown) + (f" and {counted(more, 'more range')}" if more else "")


def export_notes(found: Sequence[Standing], members: Sequence[str]) -> list[str]:
    """Return notes for the user before Spark continues."""
    notes = []
    if members:
        notes.append(
            f"{', '.join(members)} are still in the group: Spark would process again what they process from now on; "
            "stop the topology and export again"
        )
    if without := [standing.place for standing in found if standing.offset is None]:
        notes.append(f"no commit for {', '.join(without)}: read from the beginning")
    if gone := [
        f"{s.place} (the log begins at {s.begin})" for s in found if s.offset is not None and s.offset < s.begin
    ]:
        notes.append(f"deleted from Kafka before it was processed, unless it is skipped: {', '.join(gone)}")
    return notes


# --- import ---


def _import(arguments: argparse.Namespace) -> int:
    from downspout.offsets.group_offsets import commit_moves, plan_moves
    from downspout.spark.checkpoint import read_checkpoint

    if arguments.checkpoint is None:
        _print(arguments, *import_zookeeper(arguments))
        return 0
    checkpoint = read_checkpoint(arguments.checkpoint)
    targets = {tp: end for tp, end in checkpoint.offsets.items() if not arguments.topic or tp.topic in arguments.topic}
    if not targets:
        topics = ", ".join(sorted({tp.topic for tp in checkpoint.offsets})) or "none yet"
        raise ConfigError(
            f"{checkpoint.directory} holds no such topic: its topics are {topics}", cure="another --topic"
        )
    cluster = open_groups(arguments)
    moves = plan_moves(cluster, arguments.group, targets, topology_id=arguments.topology_id, force=arguments.force)
    if arguments.yes:
        commit_moves(cluster, arguments.group, moves)
    facts = {"dry_run": not arguments.yes, "group": arguments.group, **import_facts(checkpoint, targets, moves)}
    lines = render_import(checkpoint, targets, moves, done=arguments.yes)
    _print(arguments, facts, lines, import_notes(checkpoint, moves, arguments.topology_id))
    return 0


def import_facts(checkpoint: Checkpoint, targets: dict[TopicPartition, int], moves: Sequence[Move]) -> dict[str, Any]:
    """Return the result or dry run as JSON values."""
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
    """Return the result or dry run as text."""
    stands = "where it started" if checkpoint.batch is None else f"at the end of batch {checkpoint.batch}"
    moved = {move.tp for move in moves}
    lines = [f"the query stands {stands}", *map(_render_move, moves)]
    lines += [f"{coordinates(*tp)}: is already at {end}" for tp, end in sorted(targets.items()) if tp not in moved]
    lines.append(f"{counted(len(moves), 'partition')} {'moved' if done else 'would be moved'}")
    return lines if done else [*lines, "nothing was changed: add --yes to do it"]


def _render_move(move: Move) -> str:
    way = f"starts at {move.to}" if move.before is None else f"{move.before} → {move.to}"
    why = " (back)" if move.is_back else ""
    if not move.named:
        why = " (not in the checkpoint: its beginning)"
    elif move.to != move.asked:
        why = f" (the query is at {move.asked}; the spout has already processed the offsets between)"
    return f"{coordinates(*move.tp)}: {way}{why}"


def import_notes(checkpoint: Checkpoint, moves: Sequence[Move], topology_id: str) -> list[str]:
    """Return notes for the user before the spout starts."""
    notes = []
    if checkpoint.unfinished is not None:
        ends = ", ".join(coordinates(tp.topic, tp.partition, end) for tp, end in sorted(checkpoint.planned.items()))
        notes.append(
            f"batch {checkpoint.unfinished}{f', up to {ends},' if ends else ''} was started but not finished: the "
            "spout processes it again, as Spark would. If the query's sink may already hold part of it and does not "
            "identify records by origin, let the query finish the batch (trigger availableNow) before you import"
        )
    if checkpoint.others:
        notes.append(f"{counted(checkpoint.others, 'source')} of the query not reading Kafka: left out")
    if moves and not topology_id and all(move.before is None for move in moves):
        notes.append(
            "the group has no commits that name its topology: the spout starts here only with an UNCOMMITTED_… "
            "kafka.start (the default); for another one, give --topology-id"
        )
    return notes


# --- from ZooKeeper ---

KEY = "--from-zookeeper"


def add_zookeeper(parser: argparse.ArgumentParser) -> None:
    """Add the options that go with ``--from-zookeeper``."""
    parser.add_argument(
        "--zookeeper-password", metavar="REF",
        help="password of the user in --from-zookeeper, as env:NAME or file:PATH",
    )  # fmt: skip
    parser.add_argument(
        "--old-start", default="earliest", metavar="TIME",
        help="the old spout's start in partitions without an offset (startOffsetTime): earliest (default), latest, or "
        "a time with its zone",
    )  # fmt: skip
    parser.add_argument(
        "--behind-max", type=int, metavar="N",
        help="ignore offsets more than N behind that start (maxOffsetBehind); default: no limit",
    )  # fmt: skip
    parser.add_argument(
        "--watch", default="5s", metavar="TIME",
        help="how long to watch the nodes for changes, which show that the old topology still runs (default 5s)",
    )  # fmt: skip


def import_zookeeper(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str], list[str]]:
    """Plan, and apply with ``--yes``; return the plan as JSON values and as lines, and notes."""
    from downspout.offsets.seek_targets import chosen
    from downspout.offsets.seeking import check_not_live, empty_group, plan_seek
    from downspout.offsets.zookeeper import places_of

    topics, group, start = chosen(arguments.topic), arguments.group, _start(arguments.old_start)
    path, offsets, notes = _read(arguments)
    offsets = {
        tp: offset
        for tp, offset in offsets.items()
        if not topics or (tp.topic in topics and tp.partition in (topics[tp.topic] or {tp.partition}))
    }
    if not offsets:
        raise ConfigError(f"{path} has no usable offset: {'; '.join(notes)}", cure="another --topic")
    cluster = open_groups(arguments)
    empty_group(cluster, group)
    starts = {} if arguments.behind_max is None else _starts(cluster, group, start, offsets)
    places, more = places_of(offsets, start, starts, arguments.behind_max)
    is_new = not cluster.group_offsets(group)
    plan = plan_seek(
        cluster, group, places, {}, topology_id=arguments.topology_id, force=arguments.force or is_new
    )  # fmt: skip
    if (back := [move for move in plan.moves if move.is_back]) and not arguments.force:
        shown = ", ".join(f"{coordinates(*move.tp)} from {move.before} to {move.to}" for move in back)
        raise ConfigError(
            f"group {group} would be moved back: {shown}; the offsets between would be processed again",
            cure="check that it is the same topology's group; --force moves it anyway",
        )
    if plan.moves:
        plan.warnings.extend(check_not_live(cluster, group, plan.found, force=arguments.force))
    if arguments.yes:
        plan.apply(cluster)
    facts = {"dry_run": not arguments.yes, "group": group, "zookeeper": path, **plan_facts(plan)}
    lines = render_plan(plan, done=arguments.yes)
    if not plan.moves:
        lines.append("nothing to do")
    elif not arguments.yes:
        lines.append(NOTHING_CHANGED)
    return facts, lines, [*notes, *more, *plan.warnings, *_without(cluster, group, offsets, topics)]


def _read(arguments: argparse.Namespace) -> tuple[str, dict[TopicPartition, int], list[str]]:
    """Return the path, the offsets below it, and notes; raise if the nodes are still changing."""
    from downspout.offsets.zookeeper import location_of, open_nodes, read_state, refuse_changes
    from downspout.settings.secrets import with_secrets
    from downspout.spout.ports import PASSWORD_SETTING

    if (watch_s := seconds_of(arguments.watch)) is None:
        raise ConfigError(f"--watch {arguments.watch!r} is not a duration", cure="--watch 10s")
    location = location_of(arguments.zookeeper, KEY)
    password = arguments.zookeeper_password
    nodes = open_nodes(
        location, None if password is None else with_secrets({PASSWORD_SETTING: password})[PASSWORD_SETTING]
    )
    try:
        found = read_state(nodes, location.path)
        refuse_changes(nodes, found, watch_s)
    finally:
        nodes.close()
    return location.path or "/", found.offsets, found.notes


def _start(text: str) -> Place:
    from downspout.offsets.seek_targets import Place, TargetKind, moment

    if text.lower() in (TargetKind.EARLIEST.value, TargetKind.LATEST.value):
        return Place(TargetKind(text.lower()))
    return Place(TargetKind.TIME, moment(text))


def _starts(
    cluster: Cluster, group: str, start: Place, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the start offset of the old spout in each existing partition."""
    from downspout.offsets.group_offsets import asking
    from downspout.offsets.seek_targets import reckon

    with asking(cluster, group, "read_uncommitted") as consumer:
        numbers = {topic: consumer.partitions_for(topic) for topic in {tp.topic for tp in offsets}}
        known = [tp for tp in offsets if tp.partition in numbers[tp.topic]]
        begins, ends = consumer.beginning_offsets(known), consumer.end_offsets(known)
        times = consumer.offsets_for_times(dict.fromkeys(known, start.value))
    found = {tp: reckon(start, begin=begins[tp], end=ends[tp], current=None, at_time=times.get(tp)) for tp in known}
    return {tp: offset for tp, offset in found.items() if offset is not None}


def _without(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int], topics: Mapping[str, frozenset[int]]
) -> list[str]:
    """Return notes on partitions without an offset in ZooKeeper."""
    from downspout.offsets.group_offsets import asking

    with asking(cluster, group, "read_uncommitted") as consumer:
        every = [(topic, number) for topic in {tp.topic for tp in offsets} for number in consumer.partitions_for(topic)]
    left = [tp for tp in sorted(every) if tp not in offsets and not topics.get(tp[0])]
    names = ", ".join(coordinates(*tp) for tp in left)
    return [f"no node for {names}: left unchanged, kafka.start decides"] if left else []

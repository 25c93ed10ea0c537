"""``downspout offsets seek | delete``, and ``export`` to files: arguments and output.

``seek`` has the options of ``kafka-consumer-groups --reset-offsets``. Both commands change nothing without ``--yes``.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout import offset_ranges
from downspout.cli.access import nothing_committed, open_groups
from downspout.cli.arguments import place
from downspout.errors import BrokerError, ConfigError, SinkError, coordinates
from downspout.formatting import columns, counted, seconds_of

if TYPE_CHECKING:
    from downspout.kafka.port import Cluster, TopicPartition
    from downspout.offsets.group_offsets import Move
    from downspout.offsets.seek_targets import Place
    from downspout.offsets.seeking import SeekPlan
    from downspout.sink.log import CommitLog

Sinks = Mapping[Path, "CommitLog"]
NO_SINKS: Sinks = {}
NOTHING_CHANGED = "nothing was changed: add --yes to do it"


def add_seek(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``seek``."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--to-earliest", action="store_true", help="the beginning of the log")
    where.add_argument("--to-latest", action="store_true", help="the end of the log")
    where.add_argument("--to-current", action="store_true", help="the group's commit; the end if it has none")
    where.add_argument("--to-offset", type=_whole, metavar="OFFSET", help="this offset in each partition")
    where.add_argument("--shift-by", type=_whole, metavar="N", help="this many offsets forward, or backward: -100")
    where.add_argument(
        "--to-datetime", metavar="TIME",
        help="the first record of this time or later: 2026-11-24T10:00:00Z; the zone is required",
    )  # fmt: skip
    where.add_argument("--by-duration", metavar="TIME", help="the first record not older than this: 90s, 2h, PT1M")
    where.add_argument(
        "--from-file", type=place, metavar="FILE",
        help="a file of `offsets export`, or Kafka's CSV: topic,partition,offset, optionally with the group in front",
    )  # fmt: skip
    parser.add_argument(
        "--done", choices=["keep", "forget"],
        help="whether offsets done beyond the commit stay done (default: keep them when moving forward, forget them "
        "when moving back)",
    )  # fmt: skip
    parser.add_argument(
        "--sink", action="append", default=[], type=place, metavar="DIR",
        help="a sink's directory: report which records it already has, and record skipped offsets there for its audit; "
        "may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--strict", action="store_true", help="refuse a position outside the log, instead of using the nearest one"
    )
    parser.add_argument(
        "--topology-id", default="", metavar="ID", help="topology id to commit under (default: that of the last commit)"
    )
    add_doing(parser)
    parser.add_argument(
        "--force", action="store_true",
        help="also move a group that never committed, one of an earlier topic, or one that a running spout may use by "
        "assignment (kafka.mode=assign), which then overwrites the move",
    )  # fmt: skip


def add_delete(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``delete``."""
    add_doing(parser)
    parser.add_argument(
        "--force", action="store_true",
        help="also delete commits that a running spout may use by assignment (kafka.mode=assign), which commits again",
    )  # fmt: skip


def add_doing(parser: argparse.ArgumentParser) -> None:
    """Add ``--yes`` and the options about members."""
    parser.add_argument("--yes", action="store_true", help="do it; without --yes, only show what would be done")
    parser.add_argument(
        "--wait", default="0s", metavar="TIME",
        help="wait up to this long for the sessions of dead members to end (kafka.session_timeout_ms, 10s by default)",
    )  # fmt: skip
    parser.add_argument(
        "--remove-members", action="store_true",
        help="remove static members from the group, instead of waiting for their sessions to end; a running one "
        "rejoins",
    )  # fmt: skip


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def seek(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str], list[str]]:
    """Plan, and apply with ``--yes``; return the plan as JSON values and as lines, and notes."""
    from downspout.offsets.seek_targets import chosen
    from downspout.offsets.seeking import check_not_live, plan_seek

    groups: list[str] = arguments.group
    if repeated := [group for group in groups if groups.count(group) > 1]:
        raise ConfigError(f"group {repeated[0]} is named twice", cure="each group once")
    topics, sinks = chosen(arguments.topic), _open_sinks(arguments.sink)
    places = _places(arguments, groups)
    cluster = open_groups(arguments)
    keep = None if arguments.done is None else arguments.done == "keep"
    plans = []
    for group in groups:  # plan all before moving any: an error in a plan moves none
        _settle(cluster, group, arguments)
        plan = plan_seek(
            cluster, group, places[group], topics, topology_id=arguments.topology_id, keep=keep,
            strict=arguments.strict, force=arguments.force,
        )  # fmt: skip
        if plan.moves:
            plan.warnings.extend(check_not_live(cluster, group, plan.found, force=arguments.force))
        plans.append(plan)
    if arguments.yes:
        for number, plan in enumerate(plans):
            try:
                plan.apply(cluster)
            except BrokerError as error:  # Kafka commits for one group at a time
                before = "".join(f"; group {earlier.group} was moved before" for earlier in plans[:number])
                raise BrokerError(error.message + before, cure=error.cure) from error
            _note(plan, sinks)
    facts = {"dry_run": not arguments.yes, "groups": [plan_facts(plan, sinks) for plan in plans]}
    lines = [line for plan in plans for line in render_plan(plan, sinks, done=arguments.yes, named=len(plans) > 1)]
    if not any(plan.moves for plan in plans):
        lines.append("nothing to do")
    elif not arguments.yes:
        lines.append(NOTHING_CHANGED)
    notes = [note for plan in plans for note in plan.warnings]
    if not sinks and any(move.skipped for plan in plans for move in plan.moves):
        notes.append(
            "a sink's audit will report skipped offsets as missing, unless --sink DIR records there that this was on "
            "purpose"
        )
    return facts, lines, notes


def _places(arguments: argparse.Namespace, groups: Sequence[str]) -> Mapping[str, Place | dict[TopicPartition, Place]]:
    """Return the target of each group."""
    from downspout.offsets.seek_targets import Place, TargetKind, milliseconds, moment, read_places

    if arguments.from_file is not None:
        return read_places(arguments.from_file, groups)
    if arguments.to_offset is not None:
        one = Place(TargetKind.OFFSET, arguments.to_offset)
    elif arguments.shift_by is not None:
        one = Place(TargetKind.SHIFT, arguments.shift_by)
    elif arguments.to_datetime is not None:
        one = Place(TargetKind.TIME, moment(arguments.to_datetime))
    elif arguments.by_duration is not None:
        one = Place(TargetKind.TIME, max(0, int(time.time() * 1000) - milliseconds(arguments.by_duration)))
    else:
        kinds = {TargetKind.EARLIEST: arguments.to_earliest, TargetKind.LATEST: arguments.to_latest}
        one = Place(next((kind for kind, wanted in kinds.items() if wanted), TargetKind.CURRENT))
    return dict.fromkeys(groups, one)


def _settle(cluster: Cluster, group: str, arguments: argparse.Namespace) -> None:
    """Make sure that the group has no members; with ``--yes``, wait for them or remove them."""
    from downspout.offsets.seeking import empty_group

    if (wait_s := seconds_of(arguments.wait)) is None:
        raise ConfigError(f"--wait {arguments.wait!r} is not a duration", cure="--wait 45s")
    if arguments.yes:
        empty_group(cluster, group, wait_s=wait_s, remove=arguments.remove_members)
    else:
        empty_group(cluster, group)


def _open_sinks(directories: Sequence[Path]) -> Sinks:
    from downspout.sink.notes import rows_of

    return {directory: rows_of(directory) for directory in directories}


def _note(plan: SeekPlan, sinks: Sinks) -> None:
    """Record skipped offsets in the sinks' directories, only after the commit: an invented skip would hide a loss."""
    from downspout.sink.notes import SeekStep, note_skips

    steps = [SeekStep((*_topic(move), move.tp.partition), move.skipped, move.again) for move in plan.moves]
    for directory, log in sinks.items():
        try:
            note_skips(directory, steps, log, f"seek-{os.getpid()}")
        except SinkError as error:
            raise SinkError(
                f"group {plan.group} was moved, but {directory} has no record of it, so its audit will report skipped "
                f"offsets as missing: {error.message}",
                cure=f"{error.cure}; then move the group back and here again",
            ) from error


def _topic(move: Move) -> tuple[str, str]:
    return move.tp.topic, move.topic_id


def _held(log: CommitLog, move: Move) -> int:
    """Return how many of the offsets to be read again have a row in a sink."""
    from downspout.sink.notes import covered

    return offset_ranges.count(offset_ranges.intersect(move.again, covered(log, *_topic(move), move.tp.partition)))


def plan_facts(plan: SeekPlan, sinks: Sinks = NO_SINKS) -> dict[str, Any]:
    """Return a plan as JSON values."""
    return {
        "group": plan.group,
        "moves": [
            {"topic": move.tp.topic, "partition": move.tp.partition, "from": move.before, "to": move.to,
             "asked": move.asked,
             "again": offset_ranges.count(move.again), "skipped": offset_ranges.count(move.skipped),
             "done_kept": [list(each) for each in move.done_after],
             "done_forgotten": [list(each) for each in move.forgotten],
             "sinks": {str(directory): _held(log, move) for directory, log in sinks.items()}}
            for move in plan.moves
        ],
        "unchanged": len(plan.unchanged),
    }  # fmt: skip


def render_plan(plan: SeekPlan, sinks: Sinks = NO_SINKS, *, done: bool, named: bool = False) -> list[str]:
    """Return a plan as lines."""
    lines = [f"group {plan.group}:"] if named else []
    if plan.moves:
        rows = [["partition", "from", "", "to", "again", "skipped", "done beyond"], *map(_row, plan.moves)]
        lines += columns(rows, (1, 3, 4, 5))
    for move in plan.moves:
        if move.to != move.asked:
            place = coordinates(move.tp.topic, move.tp.partition, move.asked)
            lines.append(f"{place} and the offsets after it are already done: {move.to} is the first that is not")
        for directory, log in sinks.items():
            if move.again:
                lines.append(
                    f"{coordinates(*move.tp)}: {directory} has {_held(log, move):,} of the "
                    f"{counted(offset_ranges.count(move.again), 'offset')} that are read again, and will skip them"
                )
    if plan.unchanged:
        lines.append(f"{counted(len(plan.unchanged), 'partition')} already there")
    if plan.moves:
        lines.append(f"{counted(len(plan.moves), 'partition')} {'moved' if done else 'would be moved'}")
    return lines


def _row(move: Move) -> list[str]:
    kept, gone = len(move.done_after), offset_ranges.count(move.forgotten)
    beyond = [f"{counted(kept, 'range')} kept"] * bool(kept) + [f"{counted(gone, 'offset')} forgotten"] * bool(gone)
    again, skipped = offset_ranges.count(move.again), offset_ranges.count(move.skipped)
    before = "–" if move.before is None else str(move.before)
    return [coordinates(*move.tp), before, "→", str(move.to), f"{again:,}", f"{skipped:,}", ", ".join(beyond) or "–"]


# --- delete ---


def delete(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str], list[str]]:
    """Plan, and apply with ``--yes``; return the plan as JSON values and as lines, and notes."""
    from downspout.offsets import seeking
    from downspout.offsets.group_offsets import commits_of
    from downspout.offsets.seek_targets import chosen

    group, topics = arguments.group, chosen(arguments.topic)
    cluster = open_groups(arguments)
    _settle(cluster, group, arguments)
    found = seeking.plan_delete(cluster, group, topics)
    stands = [each for each in commits_of(cluster, group) if each.tp in found]
    notes = seeking.check_not_live(cluster, group, stands, force=arguments.force)
    if found and arguments.yes:
        seeking.delete(cluster, group, found.keys(), whole=not topics)
    facts = {
        "dry_run": not arguments.yes, "group": group, "whole": not topics,
        "deleted": [{"topic": tp.topic, "partition": tp.partition, "offset": at} for tp, at in found.items()],
    }  # fmt: skip
    if not found:
        return facts, [f"nothing to do: group {group} has no such commits"], []
    lines = [f"{coordinates(*tp)}: the commit at {offset}" for tp, offset in found.items()]
    lines.append(
        f"{counted(len(found), 'commit')}{'' if topics else ' and the group'} "
        f"{'deleted' if arguments.yes else 'would be deleted'}"
    )
    notes += [
        "kafka.start then decides where a spout of this group starts; offsets done beyond the commits are forgotten"
    ]
    return facts, lines if arguments.yes else [*lines, NOTHING_CHANGED], notes


# --- export to files ---


def export_text(arguments: argparse.Namespace) -> tuple[str, list[str]]:
    """Return the groups' positions as the text of a file, and notes."""
    import json

    from downspout.offsets.group_offsets import standings
    from downspout.offsets.seek_targets import chosen, to_csv, to_json

    topics, cluster = chosen(arguments.topic), open_groups(arguments)
    found = {}
    for group in arguments.group:
        stands = [
            each
            for each in standings(cluster, group, topics.keys())
            if not topics or not topics[each.tp.topic] or each.tp.partition in topics[each.tp.topic]
        ]
        if all(standing.offset is None for standing in stands):
            raise nothing_committed(arguments, group)
        found[group] = stands
    notes = [
        f"{', '.join(members)} {'is' if len(members) == 1 else 'are'} still in group {group}, whose position keeps "
        "moving"
        for group in found
        if (members := cluster.group_members(group))
    ]
    if arguments.to == "json":
        return json.dumps(to_json(found), indent=2), notes
    if holes := [s.place for stands in found.values() for s in stands if s.metadata.done]:
        notes.append(f"CSV cannot hold the offsets done beyond {', '.join(holes)}; JSON can")
    return to_csv(found).rstrip("\n"), notes

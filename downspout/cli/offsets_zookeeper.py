"""``downspout offsets import --from-zookeeper``: move a group to where a spout of old stands, or Trident."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from downspout.cli.access import open_groups
from downspout.cli.offsets_seek import NOTHING_CHANGED, plan_facts, render_plan
from downspout.errors import ConfigError, coordinates
from downspout.formatting import seconds_of

if TYPE_CHECKING:
    from downspout.kafka.port import Cluster, TopicPartition
    from downspout.offsets.places import Place

KEY = "--from-zookeeper"


def add_zookeeper(parser: argparse.ArgumentParser) -> None:
    """Add the options that go with ``--from-zookeeper``."""
    parser.add_argument(
        "--zookeeper-password", metavar="REF",
        help="password of the user in --from-zookeeper, as env:NAME or file:PATH",
    )  # fmt: skip
    parser.add_argument(
        "--old-start", default="earliest", metavar="TIME",
        help="where the old spout starts without an offset (startOffsetTime): earliest (default), latest, or a time "
        "with its zone",
    )  # fmt: skip
    parser.add_argument(
        "--behind-max", type=int, metavar="N",
        help="take no offset that lies further behind that start (maxOffsetBehind); default: no limit",
    )  # fmt: skip
    parser.add_argument(
        "--watch", default="5s", metavar="TIME",
        help="how long the nodes are watched for changes, which show that the old topology runs (default 5s)",
    )  # fmt: skip


def import_zookeeper(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str], list[str]]:
    """Plan, do it with ``--yes``; return it as JSON values, as lines, and what else there is to know."""
    from downspout.offsets.places import chosen
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
        raise ConfigError(f"{path} holds no offset that could be taken: {'; '.join(notes)}", cure="another --topic")
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
            f"group {group} would be moved back: {shown}; what lies between would be processed again",
            cure="is it the same topology's group? --force moves it all the same",
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
    """Return the path, the offsets below it, and what there is to know; the nodes must rest."""
    from downspout.offsets.znodes import location_of, open_nodes
    from downspout.offsets.zookeeper import read_state, refuse_changes
    from downspout.settings.secrets import with_secrets
    from downspout.spout.ports import PASSWORD_SETTING

    if (watch_s := seconds_of(arguments.watch)) is None:
        raise ConfigError(f"--watch {arguments.watch!r} is no duration", cure="--watch 10s")
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
    from downspout.offsets.places import Kind, Place, moment

    if text.lower() in (Kind.EARLIEST.value, Kind.LATEST.value):
        return Place(Kind(text.lower()))
    return Place(Kind.TIME, moment(text))


def _starts(
    cluster: Cluster, group: str, start: Place, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return which offset the old spout would start at, in each partition that Kafka has."""
    from downspout.offsets.group_offsets import asking
    from downspout.offsets.places import reckon

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
    """Name the partitions of these topics of which ZooKeeper holds nothing."""
    from downspout.offsets.group_offsets import asking

    with asking(cluster, group, "read_uncommitted") as consumer:
        every = [(topic, number) for topic in {tp.topic for tp in offsets} for number in consumer.partitions_for(topic)]
    left = [tp for tp in sorted(every) if tp not in offsets and not topics.get(tp[0])]
    names = ", ".join(coordinates(*tp) for tp in left)
    return [f"no node for {names}: left alone, kafka.start decides"] if left else []

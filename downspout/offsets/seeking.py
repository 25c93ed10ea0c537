"""Moves a group to another place, or deletes its commits: each is planned first, then done completely or not at all.

A :class:`SeekPlan` is a list of commits (:class:`~downspout.offsets.group_offsets.Move`), which is shown and then done.
The places are those of Kafka's own tool (:mod:`downspout.offsets.seek_targets`); in addition we know what a group has
done beyond its commit. A move forward keeps these ranges: a place inside one becomes its end. A move back drops them.

A running spout would not notice the move, and would overwrite it. The broker knows the members of a group, but a spout
with ``kafka.mode=assign`` is no member. Its commits' metadata says that it is at work, until it ends in order, and it
renews an unchanged commit after an hour. So a spout whose commits are younger may be alive.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from downspout.errors import BrokerError, ConfigError, coordinates
from downspout.formatting import lasting
from downspout.kafka.port import Cluster, TopicPartition
from downspout.offsets.group_offsets import (
    Move,
    Standing,
    asking,
    author_of,
    commit_for,
    commit_moves,
    refuse_members,
    standings,
)  # fmt: skip
from downspout.offsets.seek_targets import Place, TargetKind, reckon
from downspout.spout.partition import RENEW_MS

__all__ = ["SeekPlan", "check_not_live", "delete", "empty_group", "plan_delete", "plan_seek"]

Chosen = Mapping[str, frozenset[int]]
LOOK_S = 0.2
IF_GONE = "; then --wait 10s waits for that, and --remove-members takes static ones out at once"
ANYWHERE = (TargetKind.EARLIEST, TargetKind.LATEST, TargetKind.TIME)
"""Places that mean the same, whatever was committed."""


@dataclass(frozen=True, slots=True)
class SeekPlan:
    """How a group is moved."""

    group: str
    moves: list[Move] = field(default_factory=list)
    unchanged: dict[TopicPartition, int] = field(default_factory=dict)  # those that are there already
    warnings: list[str] = field(default_factory=list)
    found: list[Standing] = field(default_factory=list)  # where the group stands in all that was chosen

    def apply(self, cluster: Cluster) -> None:
        """Commit all moves or none.

        Raises:
            BrokerError: a member has joined, no broker answers, or it refuses.
        """
        commit_moves(cluster, self.group, self.moves)


def plan_seek(
    cluster: Cluster,
    group: str,
    to: Place | Mapping[TopicPartition, Place],  # one for all that is chosen, or one for each partition
    topics: Chosen,  # none: what the group has commits for
    *,
    topology_id: str = "",  # who commits; default: who did before
    keep: bool | None = None,  # whether what is done beyond stays done; default: forward yes, back no
    strict: bool = False,  # refuse what lies outside the log
    force: bool = False,  # also give a new group its first commits, and move one of an earlier topic
) -> SeekPlan:
    """Return the commits that move a group to a place.

    Raises:
        BrokerError: a topic or partition does not exist; no broker answers.
        ConfigError: the group has committed nothing; a place lies outside the log, with ``strict``; a shift, and no
            commit to shift.
    """
    if isinstance(to, Place):
        named = set(topics)
    else:
        named = {tp.topic for tp in to if not topics or tp.topic in topics}
    found = standings(cluster, group, named) if named or isinstance(to, Place) else []
    if not (force and named) and not cluster.group_offsets(group):
        raise ConfigError(
            f"group {group} has committed nothing: it never read, its commits expired (offsets.retention.minutes), or "
            "its name is misspelt" + ("" if named else "; and no --topic is named"),
            cure="check kafka.group of the spout"
            + ("; --force gives a new group its first commits" if named else ", or name a --topic"),
        )
    places = _places(to, topics, found)
    standing_of = {standing.tp: standing for standing in found}
    if missing := sorted(places.keys() - standing_of.keys()):
        raise BrokerError(
            f"{', '.join(coordinates(*tp) for tp in missing)} {'does' if len(missing) == 1 else 'do'} not exist",
            cure="check the topic and its number of partitions: `downspout kafka topics`",
        )
    plan = SeekPlan(group, found=[standing_of[tp] for tp in sorted(places)])
    times = _times(cluster, group, places)
    _check_places(group, places, standing_of, force)
    targets = {tp: _target(plan, standing_of[tp], place, times.get(tp)) for tp, place in sorted(places.items())}
    if strict and plan.warnings:
        raise ConfigError("; ".join(plan.warnings), cure="another place, or no --strict")
    author = author_of(found) or group
    for tp, target in targets.items():
        standing, place = standing_of[tp], places[tp]
        beyond = place.done if keep is not False and target == place.value else None
        stays = keep if keep is not None else standing.offset is None or target >= standing.offset or beyond is not None
        by = topology_id or standing.metadata.topology_id or author
        move = commit_for(standing, target, by, keep=stays, beyond=beyond)
        same = (move.to, move.done_after) == (move.before, move.done_before) and not standing.earlier
        if same and by in (standing.metadata.topology_id, author if not topology_id else ""):
            plan.unchanged[tp] = move.to
        else:
            plan.moves.append(move)
    left = [s.tp for s in found if s.offset is None and s.tp not in places]
    if left and isinstance(to, Place) and not topics:
        plan.warnings.append(
            f"no commit for {', '.join(coordinates(*tp) for tp in left)}: left unchanged, kafka.start decides; name "
            "the topic to move them too"
        )
    return plan


def _places(
    to: Place | Mapping[TopicPartition, Place], topics: Chosen, found: Sequence[Standing]
) -> dict[TopicPartition, Place]:
    """Return the place of each partition that is meant."""
    if not isinstance(to, Place):
        lacking = [topic for topic in topics if all(tp.topic != topic for tp in to)]
        lacking += [
            coordinates(topic, number)
            for topic, numbers in sorted(topics.items())
            for number in sorted(numbers)
            if topic not in lacking and (topic, number) not in to
        ]
        if lacking:
            raise ConfigError(f"no position is given for {', '.join(lacking)}", cure="check the file, and --topic")
        return {
            tp: place
            for tp, place in to.items()
            if not topics or (tp.topic in topics and (not topics[tp.topic] or tp.partition in topics[tp.topic]))
        }
    if not topics:
        return {standing.tp: to for standing in found if standing.offset is not None}
    numbered = {TopicPartition(topic, number): to for topic, numbers in topics.items() for number in numbers}
    return numbered | {standing.tp: to for standing in found if not topics[standing.tp.topic]}


def _times(cluster: Cluster, group: str, places: Mapping[TopicPartition, Place]) -> Mapping[TopicPartition, int | None]:
    wanted = {tp: place.value for tp, place in places.items() if place.kind is TargetKind.TIME}
    if not wanted:
        return {}
    with asking(cluster, group, "read_uncommitted") as consumer:
        return consumer.offsets_for_times(wanted)


def _check_places(
    group: str, places: Mapping[TopicPartition, Place], standing_of: Mapping[TopicPartition, Standing], force: bool
) -> None:
    """Raise if a place is meaningless."""
    if empty := [tp for tp in sorted(places) if places[tp].kind is TargetKind.SHIFT and standing_of[tp].offset is None]:
        raise ConfigError(
            f"group {group} has no commit for {', '.join(coordinates(*tp) for tp in empty)}, so there is nothing to "
            "shift",
            cure="--to-offset, or only the partitions with a commit: --topic orders:0,2",
        )
    for tp, place in sorted(places.items()):
        standing = standing_of[tp]
        other = bool(place.topic_id and standing.topic_id and place.topic_id != standing.topic_id)
        if not force and (other or (standing.earlier and place.kind not in ANYWHERE)):
            raise ConfigError(
                f"{coordinates(*tp)}: the topic was deleted and created again since the "
                f"{'file was written' if other else 'group committed'}, and the new position may belong to the old one",
                cure="--to-earliest, --to-latest or a time; or --force, if it belongs to the present topic",
            )


def _target(plan: SeekPlan, standing: Standing, place: Place, at_time: int | None) -> int:
    """Return the offset of a place, inside the log; note if it differs from the requested one."""
    begin, end, where = standing.begin, standing.end, coordinates(*standing.tp)
    wanted = reckon(place, begin=begin, end=end, current=standing.offset, at_time=at_time)
    assert wanted is not None, "checked before"
    inside = min(max(wanted, begin), end)
    if place.kind is TargetKind.CURRENT and standing.offset is not None:
        if wanted != inside:
            plan.warnings.append(f"{where} stays at {wanted}, outside the log, which is {begin}–{end}")
        return wanted
    if wanted < begin:
        plan.warnings.append(f"{where}: {wanted} is below the beginning of the log: {begin} instead")
    elif wanted > end:
        plan.warnings.append(f"{where}: {wanted} is beyond the end of the log: {end} instead")
    if inside > standing.stable:
        # A spout that reads committed records alone would take a commit there for lost data.
        plan.warnings.append(
            f"{where}: a transaction that is still open begins at {standing.stable}, and a spout cannot read beyond "
            f"it: {standing.stable} instead of {inside}"
        )
        return standing.stable
    return inside


# --- whether something still reads ---


def empty_group(
    cluster: Cluster,
    group: str,
    *,
    wait_s: float = 0.0,
    remove: bool = False,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until the group has no members: until the sessions of dead ones expire, or by removing them.

    Raises:
        BrokerError: it still has members; they are named.
    """
    if remove and (members := cluster.group_members(group)):
        cluster.remove_members(group, members)  # removes the static ones: others live, or are gone soon
    deadline = clock() + wait_s
    while cluster.group_members(group) and clock() < deadline:
        sleep(LOOK_S)
    refuse_members(cluster, group, IF_GONE)


def check_not_live(cluster: Cluster, group: str, found: Iterable[Standing], *, force: bool = False) -> list[str]:
    """Raise if a spout with ``kafka.mode=assign`` may be at work; return further remarks.

    Raises:
        BrokerError: one may be at work.
    """
    at_work = [s for s in found if s.offset is not None and not s.metadata.isolation.ended]
    if not at_work or cluster.has_joined(group):
        return []
    ages = cluster.commit_ages(group, RENEW_MS / 1000)
    young = [standing for standing in at_work if ages is None or standing.tp in ages]
    if not young:
        return []
    shown = "; ".join(_shown(standing, ages) for standing in young[:3])
    risk = "a running spout does not notice that the group moved, and overwrites it"
    if force:
        return [f"--force: {shown}; {risk}"]
    raise BrokerError(
        f"group {group} has no members, but a spout that reads by assignment (kafka.mode=assign) may commit for it: "
        f"{shown}",
        cure=f"stop the topology cleanly (Ctrl-C or SIGTERM); or --force, if it was killed: {risk}",
    )


def _shown(standing: Standing, ages: Mapping[TopicPartition, float] | None) -> str:
    age = "at a time that this client may not see" if ages is None else f"{lasting(ages[standing.tp])} ago"
    writer = standing.metadata
    return f"{standing.place} was committed {age} by topology {writer.topology_id}, task {writer.task}, not ended since"


# --- deleting ---


def plan_delete(cluster: Cluster, group: str, topics: Chosen) -> dict[TopicPartition, int]:
    """Return the commits to delete: those of these topics and partitions, or all.

    Raises:
        BrokerError: a topic or partition does not exist.
    """
    if not topics:
        return {tp: commit.offset for tp, commit in sorted(cluster.group_offsets(group).items())}
    found = {standing.tp: standing for standing in standings(cluster, group, topics.keys())}
    wanted = {TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers}
    if missing := sorted(wanted - found.keys()):
        raise BrokerError(f"{coordinates(*missing[0])} does not exist", cure="check the topic's number of partitions")
    return {
        tp: standing.offset
        for tp, standing in sorted(found.items())
        if standing.offset is not None and (tp in wanted or not topics[tp.topic])
    }


def delete(cluster: Cluster, group: str, partitions: Collection[TopicPartition], *, whole: bool) -> None:
    """Delete a group's commits for partitions, or the group.

    Raises:
        BrokerError: the broker refuses, or a member has joined meanwhile.
    """
    if not whole:
        cluster.delete_offsets(group, partitions)
    elif cluster.delete_groups([group]):
        raise BrokerError(f"group {group} has members by now: nothing was deleted", cure="stop the topology")

"""What is said of a group's commits when a spout starts, and which commits it does not start from.

* A commit without a topology id was moved by a tool (``kafka-consumer-groups --reset-offsets`` leaves no metadata), or
  made by another consumer. A ``kafka.start`` that goes by the topology does not obey it.
* Another topology's commit: it may have been renamed, or two topologies share a group, and each gets a part.
* No commit: the group never read the partition, or its commits expired. The broker keeps no trace of the difference;
  a sink's directory may (``noted_commits``).
* A live member of the group that is another topology's: nobody wants two topologies to have a part of the records each.
  We look before we join, and once we have joined, so of two that start at once at least one sees the other.
* In ``kafka.mode=assign`` no coordinator sees that two topologies commit for one group. Each would overwrite the
  other's commits. The metadata of a commit names its topology, and says until its end in order that it is at work; the
  age of the commit says whether it may still be. A spout that has nothing to commit for longer is not seen.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping

from kafka import errors

from downspout.errors import BrokerError, ConfigError, coordinates
from downspout.formatting import counted, lasting
from downspout.kafka.port import Cluster, OffsetAndMetadata, TopicPartition
from downspout.kafka.retry_gate import describe
from downspout.ledger.metadata import CommitMetadata, author_for_another_topic, decode
from downspout.settings.secrets import shown
from downspout.spout.offset_store import KAFKA, SETTING
from downspout.spout.setup import Setup, topology_of

Commits = Mapping[TopicPartition, OffsetAndMetadata | None]
Ages = Callable[[float], Mapping[TopicPartition, float] | None]
"""Returns the ages in seconds of the group's commits that are younger than that; None: it cannot be known."""

AT_WORK_S_MIN = 60.0
"""A commit of another topology that is younger than this, or than two periods between commits, is one of a live one."""
SHOWN_MAX = 3
_PLACES = {
    "EARLIEST": "the beginning",
    "LATEST": "the end",
    "TIMESTAMP": "kafka.start_timestamp_ms",
    "OFFSETS": "kafka.start_offsets",
}


def refuse_other_topologies(cluster: Cluster, setup: Setup, log: logging.Logger) -> None:
    """Look whether members of another topology are in the group; warn of those that are no topology's.

    Raises:
        ConfigError: another topology's are.
    """
    group, ours = setup.group, topology_of(setup.instance)
    try:
        members = cluster.group_members(group)
    except (BrokerError, errors.KafkaError) as error:
        log.warning("cannot see whether another topology uses group %s: %s", group, describe(error))
        return
    for name in members:
        if topology_of(name) not in (ours, ""):
            raise ConfigError(
                f"group {group}: {name} is a live member, of topology {topology_of(name)}. Each record would go to "
                f"only one of that topology and this one, {setup.topology}",
                cure="another kafka.group for this one; or stop that topology: after a crash its members are live for "
                "kafka.session_timeout_ms more",
            )
    if foreign := [name for name in members if not topology_of(name)]:
        log.warning(
            "group %s has live members that are no spouts of Downspout: %s. Each record goes to only one member. "
            "Try: another kafka.group for this topology", group, ", ".join(foreign[:SHOWN_MAX]),
        )  # fmt: skip


class StartNotes:
    """Looks at the commits from which partitions start that were never ours."""

    def __init__(
        self, strategy: str, group: str, topology_id: str, log: logging.Logger, offset_store: str = KAFKA
    ) -> None:
        self._strategy, self._group, self._topology_id, self._log = strategy, group, topology_id, log
        self._seek = f"downspout offsets seek {group}"
        self._absent = f"group {group} is new to"
        if offset_store != KAFKA:
            place = shown(SETTING, offset_store)
            self._seek += f" --store {place}"
            self._absent = f"{place} holds nothing of"  # the group may have commits nonetheless

    def refuse_live(self, committed: Commits, topic_ids: Mapping[str, str], ages: Ages, commit_period_s: float) -> None:
        """Look whether another topology commits for this group; without a coordinator only this keeps the two apart.

        Raises:
            ConfigError: one does.
        """
        others = {}
        for tp, commit in sorted(committed.items()):
            if commit is not None:
                found = decode(commit.offset, commit.metadata, topic_id=topic_ids.get(tp.topic, ""))
                if found.topology_id not in ("", self._topology_id) and not found.isolation.ended:
                    others[tp] = commit.offset, found
        if others:
            self._refuse_young(others, ages, max(AT_WORK_S_MIN, 2 * commit_period_s))

    def look(self, committed: Commits, topic_ids: Mapping[str, str]) -> None:
        """Say what there is to know."""
        bare, absent = [], []
        others: dict[str, list[str]] = {}  # by the topology that has committed
        for tp, commit in sorted(committed.items()):
            if commit is None:
                absent.append(coordinates(*tp))
                continue
            topic_id = topic_ids.get(tp.topic, "")
            found = decode(commit.offset, commit.metadata, topic_id=topic_id)
            author = found.topology_id or author_for_another_topic(commit.offset, commit.metadata, topic_id=topic_id)
            if not author:
                bare.append(coordinates(tp.topic, tp.partition, commit.offset))
            elif name_of(author) != name_of(self._topology_id):
                others.setdefault(name_of(author), []).append(coordinates(tp.topic, tp.partition, commit.offset))
        for name, places in others.items():
            self._log.warning(
                "group %s: topology %s has committed %s. If it still runs, each of the two gets a part of the records. "
                "Try: another kafka.group for this one",
                self._group, name, _shown(places),
            )  # fmt: skip
        if bare:
            self._say_bare(bare)
        if absent:
            self._log.info(
                "%s %s: reading from %s (kafka.start = %s)",
                self._absent, _shown(absent), _PLACES[self._strategy.removeprefix("UNCOMMITTED_")], self._strategy,
            )  # fmt: skip

    def _say_bare(self, bare: Collection[str]) -> None:
        moved = "moved by Kafka's own tool, or made by another consumer"
        if self._strategy.startswith("UNCOMMITTED"):
            self._log.info(
                "group %s: the commits for %s name no topology (%s): reading goes on there, and what was done beyond "
                "is not known",
                self._group, _shown(bare), moved,
            )  # fmt: skip
            return
        self._log.warning(
            "group %s: the commits for %s name no topology (%s): kafka.start = %s does not go by them. "
            "Try: `%s --to-current --topology-id %s`, which keeps their place, or "
            "kafka.start=UNCOMMITTED_%s",
            self._group, _shown(bare), moved, self._strategy, self._seek, self._topology_id, self._strategy,
        )  # fmt: skip

    def _refuse_young(
        self, others: Mapping[TopicPartition, tuple[int, CommitMetadata]], ages: Ages, within_s: float
    ) -> None:
        young = ages(within_s)
        for tp, (offset, found) in others.items():
            if young is not None and tp not in young:
                continue
            when = "at a time that this client has no right to see" if young is None else f"{lasting(young[tp])} ago"
            raise ConfigError(
                f"group {self._group}: topology {found.topology_id} (task {found.task}) committed "
                f"{coordinates(tp.topic, tp.partition, offset)} {when} and has not ended since. With kafka.mode=assign "
                f"it and this topology, {self._topology_id}, would overwrite each other's commits",
                cure="another kafka.group; or end that topology in order. If it was killed: "
                f"`{self._seek} --to-current --force --yes --topology-id {self._topology_id}`, or wait until the "
                f"commit is {lasting(within_s)} old",
            )


def name_of(topology_id: str) -> str:
    """Return the name of a topology, of an id that Storm, or a run here, has made of it.

    >>> name_of("word-count-2-1712113012"), name_of("shop-1"), name_of("shop")
    ('word-count', 'shop', 'shop')
    """
    return re.sub(r"-\d+(-\d+)?\Z", "", topology_id)


def _shown(places: Collection[str]) -> str:
    """Name a few of some places.

    >>> _shown(["a[0]", "a[1]"]), _shown([f"a[{number}]" for number in range(9)])
    ('a[0], a[1]', 'a[0], a[1], a[2] and 6 more partitions')
    """
    more = len(places) - SHOWN_MAX
    return ", ".join(list(places)[:SHOWN_MAX]) + (f" and {counted(more, 'more partition')}" if more > 0 else "")

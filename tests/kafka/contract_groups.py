"""The contract of the consumer port: commits, membership and rebalances (eager protocol)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from kafka import errors

from downspout.kafka import ConsumerPort, LogState, OffsetAndMetadata, Record, TopicPartition
from tests.kafka.stage import POLL_MS, POLLS_MAX, Facts, Staged, fill, poll_until, read, unique


class CommitContract(Staged):
    def test_commits_come_back_with_their_metadata(self) -> None:
        """A commit is read back with its metadata by any consumer of the group, and is None elsewhere."""
        tp, group = self.topic(5, partitions=2), unique("g")
        other = TopicPartition(tp.topic, 1)
        self.reader(tp, group=group).commit({tp: OffsetAndMetadata(3, '{"é": 1}', -1)})
        found = self.reader(tp, group=group).committed([tp, other])
        assert (found[tp].offset, found[tp].metadata) == (3, '{"é": 1}')
        assert found[other] is None
        assert self.reader(tp, group=unique("g")).committed([tp]) == {tp: None}

    def test_auto_commit_covers_what_polls_have_returned(self) -> None:
        """With auto commit, a later poll commits all that earlier ones returned, without metadata; else none does."""
        for auto_commit_ms, expected in ((50, (5, "")), (None, None)):
            tp, group = self.topic(5), unique("g")
            consumer = self.consumer(group, auto_commit_ms=auto_commit_ms)
            consumer.subscribe([tp.topic], Facts())
            read(consumer, 5)
            self.stage.wait(0.2)
            for _ in range(3):
                consumer.poll(100, 10)
            if expected is not None:  # a commit that nobody waits for takes its time
                poll_until(consumer, lambda _, consumer=consumer, tp=tp: consumer.committed([tp])[tp] is not None)
            found = consumer.committed([tp])[tp]
            assert (None if found is None else (found.offset, found.metadata)) == expected

    def test_a_group_is_told_from_outside(self) -> None:
        """A cluster tells all commits of a group and its live members; of a group that never was, nothing."""
        tp, group = self.topic(5, partitions=2), unique("g")
        assert (dict(self.stage.cluster.group_offsets(group)), list(self.stage.cluster.group_members(group))) == (
            {},
            [],
        )
        consumer, _ = self.member(tp.topic, group, instance="one")
        read(consumer, 5)
        consumer.commit({tp: OffsetAndMetadata(3, "told", -1)})
        found = self.stage.cluster.group_offsets(group)
        assert {where: (entry.offset, entry.metadata) for where, entry in found.items()} == {tp: (3, "told")}
        assert list(self.stage.cluster.group_members(group)) == ["one"]
        consumer.close(leave_group=True)
        assert list(self.stage.cluster.group_members(group)) == []

    def test_a_group_is_described(self) -> None:
        """A description has the state, the coordinator and each member with its partitions; there may be no group."""
        tp, group = self.topic(5, partitions=2), unique("g")
        assert self.stage.cluster.describe_group(group) is None
        consumer, _ = self.member(tp.topic, group, instance="one")
        read(consumer, 5)
        found = self.stage.cluster.describe_group(group)
        assert found is not None
        (member,) = found.members
        assert (found.state, bool(found.coordinator)) == ("Stable", True)
        assert (member.name, list(member.partitions)) == ("one", [tp, TopicPartition(tp.topic, 1)])
        consumer.commit({tp: OffsetAndMetadata(3, "", -1)})
        consumer.close(leave_group=True)
        found = self.stage.cluster.describe_group(group)
        assert found is not None
        assert (found.state, list(found.members)) == ("Empty", [])

    def test_logs_are_described(self) -> None:
        """A log has a beginning, a high watermark and a last stable offset; a topic that is missing says so."""
        tp, nowhere = self.topic(5, partitions=2), unique("nowhere")
        self.stage.delete_records(tp, 2)
        transaction = self.stage.transaction(tp, [b"open", b"still"])
        found = self.stage.cluster.describe_logs([tp.topic, nowhere])
        assert dict(found[tp.topic].partitions) == {0: LogState(2, 7, 5), 1: LogState(0, 0, 0)}
        assert found[tp.topic].id == self.reader(tp).topic_id(tp.topic)
        assert (found[nowhere].partitions, bool(found[nowhere].problem)) == ({}, True)
        transaction.commit()

    def test_a_group_that_members_have_joined_is_told_from_one_that_none_has(self) -> None:
        """A commit from outside makes a group that was never joined; a member that has left leaves one that was."""
        tp, group, other = self.topic(5), unique("g"), unique("g")
        assert not self.stage.cluster.has_joined(group)
        self.reader(tp, group=other).commit({tp: OffsetAndMetadata(1, "", -1)})
        assert not self.stage.cluster.has_joined(other)
        member, _ = self.member(tp.topic, group)
        read(member, 5)
        member.commit({tp: OffsetAndMetadata(5, "", -1)})
        assert self.stage.cluster.has_joined(group)
        member.close(leave_group=True)
        assert self.stage.cluster.has_joined(group)

    def test_the_age_of_commits_is_told(self) -> None:
        """Only of those that are young enough, only of the group, and of the last commit for each partition."""
        tp, group = self.topic(5, partitions=2), unique("g")
        other = TopicPartition(tp.topic, 1)
        assert dict(self.stage.cluster.commit_ages(group, 600) or {}) == {}
        reader = self.reader(tp, group=group)
        reader.commit({tp: OffsetAndMetadata(1, "", -1), other: OffsetAndMetadata(1, "", -1)})
        self.reader(tp, group=unique("g")).commit({tp: OffsetAndMetadata(1, "", -1)})
        self.stage.wait(1)
        reader.commit({tp: OffsetAndMetadata(2, "", -1)})
        found = self.stage.cluster.commit_ages(group, 600)
        assert found is not None
        assert set(found) == {tp, other}
        assert 0 <= found[tp] < found[other] <= 600
        assert set(self.stage.cluster.commit_ages(group, (found[tp] + found[other]) / 2) or ()) <= {tp}

    def test_commits_and_groups_are_deleted(self) -> None:
        """One commit goes without the others, and a group with all of them; one with members stays."""
        tp, group = self.topic(5, partitions=2), unique("g")
        other = TopicPartition(tp.topic, 1)
        reader = self.reader(tp, group=group)
        reader.commit({tp: OffsetAndMetadata(1, "", -1), other: OffsetAndMetadata(2, "", -1)})
        self.stage.cluster.delete_offsets(group, [tp])
        assert {where: found.offset for where, found in self.stage.cluster.group_offsets(group).items()} == {other: 2}
        assert list(self.stage.cluster.delete_groups([group, unique("g")])) == []
        assert dict(self.stage.cluster.group_offsets(group)) == {}
        member, _ = self.member(tp.topic, group)
        read(member, 5)
        assert list(self.stage.cluster.delete_groups([group])) == [group]

    def test_a_static_member_is_removed(self) -> None:
        tp, group = self.topic(5), unique("g")
        member, _ = self.member(tp.topic, group, instance="one")
        read(member, 5)
        self.stage.cluster.remove_members(group, ["two"])
        assert list(self.stage.cluster.group_members(group)) == ["one"]
        member.close(leave_group=False)
        self.stage.cluster.remove_members(group, ["one"])
        assert list(self.stage.cluster.group_members(group)) == []

    def test_metadata_over_the_limit_is_refused(self) -> None:
        tp, group = self.topic(5), unique("g")
        consumer = self.reader(tp, group=group)
        consumer.commit({tp: OffsetAndMetadata(1, "é" * 4096, -1)})
        with pytest.raises(errors.OffsetMetadataTooLargeError):
            consumer.commit({tp: OffsetAndMetadata(2, "x" * 4097, -1)})
        assert consumer.committed([tp])[tp].offset == 1

    def test_one_partition_with_too_much_metadata_does_not_hold_the_others(self) -> None:
        """In one commit the partitions whose metadata fits are stored though another's does not."""
        tp, group = self.topic(5, partitions=2), unique("g")
        other = TopicPartition(tp.topic, 1)
        consumer = self.reader(tp, group=group)
        with pytest.raises(errors.OffsetMetadataTooLargeError):
            consumer.commit({tp: OffsetAndMetadata(2, "x" * 5000, -1), other: OffsetAndMetadata(0, "fits", -1)})
        found = consumer.committed([tp, other])
        assert found[tp] is None
        assert found[other].metadata == "fits"

    def test_an_asynchronous_commit_arrives(self) -> None:
        tp, group = self.topic(5), unique("g")
        consumer, _ = self.member(tp.topic, group)
        read(consumer, 5)
        consumer.commit_async({tp: OffsetAndMetadata(4, "later", -1)})
        poll_until(consumer, lambda _: consumer.committed([tp])[tp] is not None)
        assert consumer.committed([tp])[tp].offset == 4

    def test_an_asynchronous_commit_is_answered_once(self) -> None:
        """A later poll says how it ended: with no error, once it is there."""
        tp, group = self.topic(5), unique("g")
        consumer, _ = self.member(tp.topic, group)
        read(consumer, 5)
        answers: list[Any] = []
        consumer.commit_async({tp: OffsetAndMetadata(4, "later", -1)}, answers.append)
        poll_until(consumer, lambda _: bool(answers))
        for _ in range(3):
            consumer.poll(POLL_MS, 10)
        assert answers == [None]
        assert consumer.committed([tp])[tp].offset == 4

    def test_an_asynchronous_commit_that_is_refused_says_why(self) -> None:
        tp, group = self.topic(5), unique("g")
        consumer = self.reader(tp, group=group)
        answers: list[Any] = []
        consumer.commit_async({tp: OffsetAndMetadata(2, "x" * 5000, -1)}, answers.append)
        poll_until(consumer, lambda _: bool(answers))
        assert [type(answer) for answer in answers] == [errors.OffsetMetadataTooLargeError]
        assert consumer.committed([tp]) == {tp: None}

    def test_an_asynchronous_commit_of_a_member_that_was_thrown_out_says_so(self) -> None:
        tp, group = self.topic(5), unique("g")
        consumer, _ = self.member(tp.topic, group, instance="one")
        read(consumer, 5)
        self.stage.cluster.remove_members(group, ["one"])
        answers: list[Any] = []
        consumer.commit_async({tp: OffsetAndMetadata(4, "", -1)}, answers.append)
        poll_until(consumer, lambda _: bool(answers))
        assert [type(answer) for answer in answers] == [errors.CommitFailedError]
        assert consumer.committed([tp]) == {tp: None}

    def test_a_commit_lets_those_sent_before_have_their_answer(self) -> None:
        tp, group = self.topic(5), unique("g")
        consumer, _ = self.member(tp.topic, group)
        read(consumer, 5)
        for first in (1, 3):
            answers: list[Any] = []
            consumer.commit_async({tp: OffsetAndMetadata(first, "", -1)}, answers.append)
            consumer.commit({tp: OffsetAndMetadata(first + 1, "", -1)})
            assert answers == [None]
            assert consumer.committed([tp])[tp].offset == first + 1

    def test_a_commit_without_offsets_waits_for_those_sent_before(self) -> None:
        """It commits nothing by itself, and without any on its way it returns at once."""
        tp, group = self.topic(5), unique("g")
        consumer, _ = self.member(tp.topic, group)
        read(consumer, 5)
        consumer.commit({})
        assert consumer.committed([tp]) == {tp: None}
        answers: list[Any] = []
        consumer.commit_async({tp: OffsetAndMetadata(3, "", -1)}, answers.append)
        consumer.commit({})
        assert answers == [None]
        assert consumer.committed([tp])[tp].offset == 3

    def test_a_new_assignment_starts_at_the_commit(self) -> None:
        """A partition that is assigned anew is read from the group's commit."""
        tp, group = self.topic(5), unique("g")
        self.reader(tp, group=group).commit({tp: OffsetAndMetadata(3, "", -1)})
        consumer, _ = self.member(tp.topic, group)
        assert [record.offset for record in read(consumer, 2)] == [3, 4]

    def test_an_outsider_cannot_commit_into_a_living_group(self) -> None:
        """A consumer that reads by assign may commit while the group has no members, and is refused while it has."""
        tp, group = self.topic(5), unique("g")
        outsider = self.reader(tp, group=group)
        outsider.commit({tp: OffsetAndMetadata(1, "", -1)})
        member, _ = self.member(tp.topic, group)
        read(member, 4)
        with pytest.raises((errors.CommitFailedError, errors.UnknownMemberIdError)):
            outsider.commit({tp: OffsetAndMetadata(2, "", -1)})
        assert member.committed([tp])[tp].offset == 1

    def test_a_member_may_commit_what_it_does_not_own(self) -> None:
        """The broker accepts a member's commit for another's partition, even back: nobody but the spout prevents it."""
        tp, group = self.topic(5, partitions=2), unique("g")
        first, _ = self.member(tp.topic, group)
        second, _ = self.member(tp.topic, group)
        poll_until([first, second], lambda _: bool(first.assignment()) and bool(second.assignment()))
        poll_until([first, second], lambda _: not first.rejoin_pending() and not second.rejoin_pending())
        (mine,) = first.assignment()
        first.commit({mine: OffsetAndMetadata(3, "", -1)})
        second.commit({mine: OffsetAndMetadata(1, "", -1)})
        assert first.committed([mine])[mine].offset == 1

    def test_a_member_that_was_thrown_out_cannot_commit(self) -> None:
        """A member that did not poll in time cannot commit; its next polls say lost and join again."""
        tp, group = self.topic(5), unique("g")
        consumer, facts = self.member(tp.topic, group, max_poll_interval_ms=4000)
        read(consumer, 5)
        consumer.commit({tp: OffsetAndMetadata(2, "", -1)})
        self.stage.wait(5)
        for _ in range(600):  # a busy broker may take a minute; for the fake it is over
            if not self.stage.cluster.group_members(group):
                break
            self.stage.wait(0.1)
        with pytest.raises(errors.CommitFailedError):
            consumer.commit({tp: OffsetAndMetadata(4, "", -1)})
        assert consumer.rejoin_pending()
        poll_until(consumer, lambda _: len(facts.real()) == 3)
        assert facts.real() == [("assigned", {0}), ("lost", {0}), ("assigned", {0})]
        assert consumer.committed([tp])[tp].offset == 2
        assert consumer.position(tp) >= 2


class GroupContract(Staged):
    def _pair(self, partitions: int = 4) -> tuple[Any, ...]:
        tp, group = self.topic(3, partitions=partitions), unique("g")
        first, told_first = self.member(tp.topic, group)
        poll_until(first, lambda _: len(first.assignment()) == partitions)
        second, told_second = self.member(tp.topic, group)
        return tp, group, first, told_first, second, told_second

    def _settle(self, *members: ConsumerPort, partitions: int) -> None:
        def settled(_: list[Record]) -> bool:
            shares = [member.assignment() for member in members]
            return (
                all(shares)
                and sum(map(len, shares)) == partitions == len(frozenset().union(*shares))
                and not any(member.rejoin_pending() for member in members)
            )

        poll_until(list(members), settled)

    def test_the_first_member_gets_everything(self) -> None:
        """A lone member is assigned all partitions in its first polls, told once."""
        tp, group = self.topic(3, partitions=3), unique("g")
        consumer, facts = self.member(tp.topic, group)
        assert consumer.assignment() == frozenset()
        poll_until(consumer, lambda _: len(consumer.assignment()) == 3)
        assert facts.real() == [("assigned", {0, 1, 2})]
        assert not consumer.rejoin_pending()

    def test_a_second_member_takes_its_share(self) -> None:
        """A rebalance revokes the full set first and assigns full sets then, which are disjoint and complete."""
        _, _, first, told_first, second, told_second = self._pair()
        self._settle(first, second, partitions=4)
        kinds = [kind for kind, _ in told_first.real()]
        assert kinds[:3] == ["assigned", "revoked", "assigned"]
        assert told_first.real()[1] == ("revoked", {0, 1, 2, 3})
        shares = [{tp.partition for tp in member.assignment()} for member in (first, second)]
        assert [told_first.real()[-1], told_second.real()[-1]] == [("assigned", share) for share in shares]
        assert sorted(map(len, shares)) == [2, 2]

    def test_a_planned_hand_over_is_announced_before_it_happens(self) -> None:
        """While a rejoin is pending nothing is revoked yet, the assignment stands, and a commit is accepted."""
        tp, _, first, told, second, _ = self._pair()
        for _ in range(POLLS_MAX):
            second.poll(POLL_MS, 10)
            if first.rejoin_pending():
                break
        assert first.rejoin_pending()
        assert told.real() == [("assigned", {0, 1, 2, 3})]
        assert len(first.assignment()) == 4
        first.commit({tp: OffsetAndMetadata(2, "handed over", -1)})
        self._settle(first, second, partitions=4)
        assert ("revoked", {0, 1, 2, 3}) in told.real()
        assert first.committed([tp])[tp].metadata == "handed over"

    def test_a_partition_that_stays_keeps_its_position_and_its_pause(self) -> None:
        """Over a rebalance a partition that comes back reads on where it was, and stays paused if it was."""
        tp, _, first, _, second, _ = self._pair(partitions=2)
        fill(self.stage, tp.topic, 3, partition=1)
        for number in (0, 1):
            first.seek(TopicPartition(tp.topic, number), 1)
        first.pause([TopicPartition(tp.topic, 0), TopicPartition(tp.topic, 1)])
        self._settle(first, second, partitions=2)
        (kept,) = first.assignment()
        assert first.position(kept) == 1
        assert first.paused() == {kept}

    def test_a_dynamic_member_that_leaves_hands_over_at_once(self) -> None:
        """After a close the other member gets everything, without waiting for a session to end."""
        _, _, first, _, second, told = self._pair()
        self._settle(first, second, partitions=4)
        first.close()
        poll_until(second, lambda _: len(second.assignment()) == 4)
        assert [kind for kind, _ in told.real()][-2:] == ["revoked", "assigned"]

    def test_closing_tells_the_listener(self) -> None:
        tp, group = self.topic(3, partitions=2), unique("g")
        consumer, facts = self.member(tp.topic, group)
        poll_until(consumer, lambda _: len(consumer.assignment()) == 2)
        consumer.close()
        assert facts.real() == [("assigned", {0, 1}), ("revoked", {0, 1})]

    def test_a_static_member_restarts_without_a_rebalance(self) -> None:
        """A static member that closes without leaving gets the same partitions back, and the other hears nothing."""
        tp, group = self.topic(3, partitions=4), unique("g")
        first, _ = self.member(tp.topic, group, instance="one")
        second, told = self.member(tp.topic, group, instance="two")
        self._settle(first, second, partitions=4)
        share, before = first.assignment(), list(told.told)
        first.close(leave_group=False)
        again, told_again = self.member(tp.topic, group, instance="one")
        poll_until([again, second], lambda _: bool(again.assignment()))
        for _ in range(5):
            again.poll(POLL_MS, 10)
            second.poll(POLL_MS, 10)
        assert again.assignment() == share
        assert told_again.real() == [("assigned", {tp.partition for tp in share})]
        assert told.told == before
        assert not second.rejoin_pending()

    def test_a_static_member_that_leaves_hands_over_at_once(self) -> None:
        tp, group = self.topic(3, partitions=4), unique("g")
        client = {"session_timeout_ms": 1_000_000}
        first, _ = self.member(tp.topic, group, instance="one", **client)
        second, _ = self.member(tp.topic, group, instance="two", **client)
        self._settle(first, second, partitions=4)
        first.close(leave_group=True)
        poll_until(second, lambda _: len(second.assignment()) == 4)

    def _taken_place(self) -> tuple[TopicPartition, ConsumerPort, ConsumerPort]:
        """Return a partition, a static member that has read it, and one that came under the same instance id."""
        tp, group = self.topic(3), unique("g")
        first, _ = self.member(tp.topic, group, instance="one")
        read(first, 3)
        second, _ = self.member(tp.topic, group, instance="one")
        poll_until(second, lambda _: bool(second.assignment()))
        return tp, first, second

    def test_a_static_member_whose_place_is_taken_is_fenced(self) -> None:
        """When a second process comes under the same instance id, the first one's commit raises."""
        tp, first, second = self._taken_place()
        with pytest.raises(errors.FencedInstanceIdError):
            first.commit({tp: OffsetAndMetadata(3, "", -1)})
        assert second.committed([tp]) == {tp: None}

    def test_an_idle_static_member_whose_place_is_taken_learns_it_from_a_poll(self) -> None:
        _, first, _ = self._taken_place()
        with pytest.raises(errors.FencedInstanceIdError):
            poll_until(first, lambda _: False)
        with pytest.raises(errors.FencedInstanceIdError):
            first.poll(POLL_MS, 10)

    def test_a_pattern_picks_up_a_topic_that_appears_later(self) -> None:
        """A pattern must match the whole name, and a new topic that matches is assigned without a call."""
        stem, group = unique("logs"), unique("g")
        self.stage.create(f"{stem}-a", 1)
        self.stage.create(f"{stem}-a-not", 1)
        consumer = self.consumer(group)
        consumer.subscribe_pattern(f"{stem}-[a-z]", Facts())
        poll_until(consumer, lambda _: bool(consumer.assignment()))
        assert {tp.topic for tp in consumer.assignment()} == {f"{stem}-a"}
        self.stage.create(f"{stem}-b", 1)
        poll_until(consumer, lambda _: len(consumer.assignment()) == 2)
        assert {tp.topic for tp in consumer.assignment()} == {f"{stem}-a", f"{stem}-b"}

    def test_a_missing_topic_is_picked_up_when_it_appears(self) -> None:
        """A subscribed topic that does not exist is no error, and is read once it exists."""
        topic, group = unique(), unique("g")
        consumer, _ = self.member(topic, group)
        assert not consumer.poll(POLL_MS, 10)
        self.stage.create(topic, 2)
        fill(self.stage, topic, 3)
        assert [record.offset for record in read(consumer, 3)] == [0, 1, 2]

    def test_new_partitions_are_picked_up(self) -> None:
        """Partitions that are added to a subscribed topic are assigned, and the others keep their position."""
        tp, group = self.topic(3), unique("g")
        consumer, _ = self.member(tp.topic, group)
        read(consumer, 3)
        self.stage.add_partitions(tp.topic, 3)
        poll_until(consumer, lambda _: len(consumer.assignment()) == 3)
        assert consumer.position(tp) == 3

    def test_new_partitions_are_picked_up_when_all_static_members_have_come_back(self) -> None:
        """Also the one that led the group, and watched for them, may die and come back without a rebalance."""
        tp, group = self.topic(3, partitions=2), unique("g")
        members = [self.member(tp.topic, group, instance=name)[0] for name in ("one", "two")]
        self._settle(*members, partitions=2)
        for at, name in enumerate(("one", "two")):
            share = members[at].assignment()
            members[at].close(leave_group=False)
            members[at] = self.member(tp.topic, group, instance=name)[0]
            poll_until(members, lambda _, at=at, share=share: members[at].assignment() == share)
        self.stage.add_partitions(tp.topic, 4)
        self._settle(*members, partitions=4)

    def test_new_partitions_are_picked_up_that_came_while_all_static_members_were_away(self) -> None:
        """Nobody watched for them when they came, and no rebalance tells of them: the one that led the group looks."""
        tp, group = self.topic(3, partitions=2), unique("g")
        members = [self.member(tp.topic, group, instance=name)[0] for name in ("one", "two")]
        self._settle(*members, partitions=2)
        for member in members:
            member.close(leave_group=False)
        self.stage.add_partitions(tp.topic, 4)
        self._settle(*(self.member(tp.topic, group, instance=name)[0] for name in ("one", "two")), partitions=4)

    def test_remote_calls_raise_in_a_listener(self) -> None:
        """Inside a rebalance callback commit and committed raise, while seek and pause work."""
        tp, group = self.topic(5), unique("g")
        consumer = self.consumer(group)
        raised: list[str] = []

        class Acts(Facts):
            def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
                super().on_partitions_assigned(partitions)
                for call in (
                    lambda: consumer.commit({tp: OffsetAndMetadata(1, "", -1)}),
                    lambda: consumer.committed([tp]),
                ):
                    try:
                        call()
                        raised.append("nothing")
                    except RuntimeError:
                        raised.append("RuntimeError")
                for partition in partitions:
                    consumer.seek(partition, 2)
                    consumer.pause([partition])

        consumer.subscribe([tp.topic], Acts())
        poll_until(consumer, lambda _: bool(consumer.assignment()))
        assert set(raised) == {"RuntimeError"}
        assert consumer.paused() == {tp}
        assert consumer.position(tp) == 2
        consumer.resume([tp])
        assert [record.offset for record in read(consumer, 3)] == [2, 3, 4]

"""A real broker with a lower limit for commit metadata than the default."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from downspout.broker import EmbeddedKafka
from downspout.ledger import decode
from tests.broker.scene import Scene, run_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]
LIMIT = 600


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    properties = {"offset.metadata.max.bytes": str(LIMIT)}
    with EmbeddedKafka(tmp_path_factory.mktemp("narrow"), properties=properties, start_s_max=240.0) as broker:
        yield broker


@pytest.mark.sweep
def test_a_commit_with_more_holes_than_fit_is_sent_again_with_less(narrow: EmbeddedKafka, topic_name: str) -> None:
    """It is committed with the lowest ranges, nothing ends, and the next owner does not repeat these."""
    with Scene(narrow.bootstrap, topic_name) as scene:
        scene.fill(3_000)
        member = scene.member()
        run_until(lambda: len(member.emitted) == 3_000, member)
        done = [offset for offset in range(1, 3_000) if offset * 7919 % 5 < 2]
        member.ack(done)
        member.commit()
        run_until(lambda: scene.commits()[0] is not None, member)
        commit = scene.commits()[0]
        assert commit is not None
        told = decode(0, commit.metadata, topic_id=scene.topic_id()).done
        assert (commit.offset, len(commit.metadata) <= LIMIT, len(told) > 100) == (0, True, True)
        assert {offset for start, end in told for offset in range(start, end)} <= set(done)
        member.ack(set(range(3_000)).difference(done))
        scene.commit_all(member, p0=3_000)


@pytest.mark.parametrize("guarantee", ["AT_MOST_ONCE", "NO_GUARANTEE"])
def test_every_guarantee_commits(narrow: EmbeddedKafka, topic_name: str, guarantee: str) -> None:
    with Scene(narrow.bootstrap, topic_name) as scene:
        scene.fill(10)
        member = scene.member(guarantee=guarantee)
        run_until(lambda: len(member.emitted) == 10, member)
        scene.commit_all(member, p0=10)

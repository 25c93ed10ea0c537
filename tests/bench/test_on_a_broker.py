"""The benchmarks themselves, small, on a real broker: they run, and refuse what is wrong. No peers: no pip here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench import commits, failures, growth, latency, race
from bench.contenders import DOWNSPOUT, LOOP, Contender
from bench.flights import publish
from bench.harness import BenchError
from bench.track import Track
from downspout.broker import EmbeddedKafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

RECORDS = 2_000


@pytest.fixture
def course(kafka_broker: EmbeddedKafka, tmp_path: Path) -> Track:
    return Track(kafka_broker.bootstrap, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("contender", DOWNSPOUT, ids=lambda contender: contender.key)
def test_our_contenders_pass_the_check(contender: Contender, course: Track, topic_name: str) -> None:
    """Each contender of ours yields the right result, with bad records and without."""
    for share in (0.0, 0.1):
        topic = f"{topic_name}-{share:g}"
        publish(course.bootstrap, topic, RECORDS, share=share)
        cost, files = course.run(contender, topic, RECORDS, share)
        assert cost.cpu_s > 0
        assert cost.rss_bytes > 0
        assert files >= 1


@pytest.mark.sweep
def test_a_contender_that_reads_too_little_is_refused(course: Track, topic_name: str) -> None:
    """A run that ends with exit code 0 and has left records out has no figure."""
    publish(course.bootstrap, topic_name, RECORDS)
    stops = f"kafka.stop_offsets={topic_name}[0]=10"
    lazy = replace(DOWNSPOUT[0], command=(*DOWNSPOUT[0].command, "--set", stops))
    with pytest.raises(BenchError, match=r"on .*: 1,510 rows for 2,000 records; .* the first is 0@10 with 0"):
        course.run(lazy, topic_name, RECORDS)


def test_a_contender_that_commits_too_little_is_refused(course: Track, topic_name: str) -> None:
    """Without its offsets at the end a run that wrote everything has no figure."""
    publish(course.bootstrap, topic_name, RECORDS)
    forgetful = replace(DOWNSPOUT[0], command=(*DOWNSPOUT[0].command, "--set", "kafka.group=another"))
    with pytest.raises(BenchError, match=r"committed is \{\}"):
        course.run(forgetful, topic_name, RECORDS)


@pytest.mark.sweep
def test_the_race_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    race.main(["--quick", "--records", "2000", "--only", "record", "--results", str(tmp_path)])
    assert DOWNSPOUT[0].name in (tmp_path / "peers.md").read_text()
    assert (tmp_path / "peers.svg").exists()
    assert LOOP.name not in capsys.readouterr().out


@pytest.mark.sweep
def test_latency_is_measured(course: Track, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row becomes durable, none before it was sent."""
    monkeypatch.setattr(latency, "RATE_SHARE_MIN", 0.0)  # a busy machine holds no rate; we look at no figure
    found = latency.measure(course, DOWNSPOUT[0], age_s=1.0, rate=500.0, seconds=4.0)
    assert len(found.seconds) == 2_000
    assert found.seconds.min() > 0
    assert found.cpu_s > 0


@pytest.mark.sweep
def test_each_commit_period_is_measured(course: Track) -> None:
    """The group has committed the end each time."""
    measured = commits.measure(course, [30_000, 10], 1_000, runs=1)
    assert [(key, len(one.costs)) for key, one in measured.items()] == [
        ((mode, period), 1) for mode in ("sync", "async") for period in (30_000, 10)
    ]


@pytest.mark.sweep
def test_growth_and_failures_go_through_all_sizes_and_shares(course: Track) -> None:
    """Both run each contender over each topic, and check what it wrote."""
    record = DOWNSPOUT[:1]
    grown = growth.measure(course, record, [1_000, 2_000], runs=1)
    assert [(one.records, len(one.costs), len(one.start_ups)) for one in grown] == [(1_000, 1, 1), (2_000, 1, 1)]
    assert "| 2,000 |" in growth.report(grown, "")
    failed = failures.measure(course, record, [0.0, 0.1], 1_000, runs=1)
    assert "| 10.00% |" in failures.report(failed, "")

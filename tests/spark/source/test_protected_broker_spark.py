"""Spark against a broker that speaks TLS and asks for a password: the source's options, and a topology on Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from downspout.broker import EmbeddedKafka
from downspout.cli import main
from downspout.errors import BrokerError
from downspout.kafka import cluster_for
from downspout.spark import register, run
from tests.security.shop_scene import SHOP, VARIABLE, Shop
from tests.sink.support import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.fixture
def shop(
    scram_kafka: EmbeddedKafka,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Shop:
    made = Shop(tmp_path, scram_kafka, topic_name, monkeypatch, capsys)
    made.command("kafka", "create", topic_name, "--partitions", "2")
    made.publish([*(json.dumps({"id": n, "city": "Łódź"}) for n in range(10)), "no JSON"])
    return made


def options_of(shop: Shop, password: str) -> dict[str, str]:
    """Return the source's options, in the spelling of Kafka's own clients."""
    login = (
        f'org.apache.kafka.common.security.scram.ScramLoginModule required username="downspout" password="{password}"'
    )
    return {
        "kafka.bootstrap.servers": shop.broker.bootstrap,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": shop.client["ssl_cafile"],
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": f"{login};",
        "subscribe": shop.topic,
    }


@pytest.mark.sweep
def test_the_source_gets_in_by_the_options_of_kafkas_own_clients(spark: SparkSession, shop: Shop) -> None:
    """A batch reads all records, and the sink writes one; no plan, and no error of a wrong one, holds the password."""
    register(spark)
    frame = spark.read.format("downspout").options(**options_of(shop, shop.password)).load()
    assert frame.count() == 11
    stream = spark.readStream.format("downspout").options(**options_of(shop, shop.password)).load()
    plans = [each._jdf.queryExecution().toString() for each in (frame, stream)]
    assert all("downspout" in plan.lower() for plan in plans)
    assert not [plan for plan in plans if shop.password in plan]
    secret = shop.folder / "secret"
    secret.write_text(options_of(shop, shop.password)["kafka.sasl.jaas.config"], encoding="utf-8")
    by_file = {**options_of(shop, "-"), "kafka.sasl.jaas.config": f"file:{secret}"}
    assert spark.read.format("downspout").options(**by_file).load().count() == 11
    names = {name: text for name, text in by_file.items() if name != "subscribe"}
    more = spark.range(1).selectExpr("string(id) AS value")
    more.write.format("downspout-kafka").options(**names, topic=shop.topic).mode("append").save()
    assert spark.read.format("downspout").options(**by_file).load().count() == 12
    bad = spark.read.format("downspout").options(**options_of(shop, "hush-hush")).load()
    with pytest.raises(Exception, match="refuses user 'downspout' by SCRAM-SHA-256") as caught:
        bad.count()
    assert "hush-hush" not in str(caught.value)


@pytest.mark.sweep
def test_a_topology_runs_and_its_password_stays_out_of_sight(spark: SparkSession, shop: Shop) -> None:
    """A topology on Spark reads, writes its dead letter and commits for lag tools; the password is in no checkpoint
    and no file of the run's, nor in what is printed."""
    done = run(SHOP, spark=spark, options={"run.until": "end"}, checkpoint=shop.folder / "checkpoint")
    assert done is not None
    assert sorted(row["id"] for row in rows_of(shop.folder / "output" / "orders")) == list(range(10))
    assert "1 dead letter" in shop.command("dlq", "ls", shop.letters)
    group = cluster_for(shop.broker.bootstrap, shop.client).group_offsets(f"{shop.topic}-spark")
    assert sum(commit.offset for commit in group.values()) == 11
    assert shop.password not in spark.sparkContext._jsc.sc().getConf().toDebugString() + shop.said
    assert not [name for name, data in shop.written().items() if shop.password.encode() in data]


def test_a_topology_without_the_password_ends_with_the_reason(
    spark: SparkSession, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a wrong password nothing is started, and the error says why."""
    monkeypatch.setenv(VARIABLE, "hush-hush")
    with pytest.raises(BrokerError, match="refuses user") as caught:
        run(SHOP, spark=spark, options={"run.until": "end"}, checkpoint=shop.folder / "checkpoint")
    assert "hush-hush" not in str(caught.value)


@pytest.mark.sweep
def test_a_checkpoint_is_handed_back(spark: SparkSession, shop: Shop) -> None:
    """The hand-over from a checkpoint to the spout's group works with the settings of the file."""
    run(SHOP, spark=spark, options={"run.until": "end"}, checkpoint=shop.folder / "checkpoint")
    words = ["offsets", "import", shop.topic, "--from-checkpoint", str(shop.folder / "checkpoint"), "--yes"]
    assert main(words) == 0
    found = cluster_for(shop.broker.bootstrap, shop.client).group_offsets(shop.topic)
    assert sum(commit.offset for commit in found.values()) == 11

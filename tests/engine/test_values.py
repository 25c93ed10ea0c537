"""Which value holds for which component, and the topology's id between runs."""

import json
import multiprocessing

import pytest
import streamparse

from downspout.engine import Component, Graph, Input, OutputStream, configurations, resolve, topology_id
from downspout.errors import ConfigError
from downspout.settings import SETTINGS, folders
from downspout.settings.table import NUMBERS
from downspout.testing import VirtualClock


class KafkaLike(streamparse.Spout):
    settings_scopes = ("kafka",)


class Sink(streamparse.Bolt):
    settings_scopes = ("parquet",)


def graph(par=1, config=None, topology_config=None):
    """Return a spout that reads Kafka settings, before a sink."""
    spout = Component("in", KafkaLike, par, config or {}, {"default": OutputStream("default", ("value",))})
    return Graph(
        "g", {"in": spout, "out": Component("out", Sink, inputs=(Input("in", "default"),))}, topology_config or {}
    )


LAYERS = [
    ("command line", "component"),
    ("command line", "all"),
    ("environment", None),
    ("component", None),
    ("topology", None),
    ("downspout.toml", None),
    ("default", None),
]


@pytest.mark.parametrize("strongest", range(len(LAYERS)))
def test_the_strongest_source_wins(strongest, tmp_path):
    """Command line, environment, component, topology, file, default: the first that gives a value decides."""
    key, given = "kafka.commit_period_ms", LAYERS[strongest:]
    file = tmp_path / "downspout.toml"
    if ("downspout.toml", None) in given:
        file.write_text("[kafka]\ncommit_period_ms = 5\n")
    settings = resolve(
        graph(
            config={key: 3} if ("component", None) in given else {},
            topology_config={key: 4} if ("topology", None) in given else {},
        ),
        ([f"in:{key}=0"] if ("command line", "component") in given else [])
        + ([f"{key}=1"] if ("command line", "all") in given else []),
        environ={"DOWNSPOUT_KAFKA_COMMIT_PERIOD_MS": "2"} if ("environment", None) in given else {},
        file=file,
    )
    found = settings.components["in"]
    assert found.sources[key] == LAYERS[strongest][0]
    assert found.values[key] == (strongest if strongest < 6 else SETTINGS[key].default)


def test_storms_keys_have_storms_defaults_and_types():
    """Keys of Storm pass through, with Storm's defaults, and numbers on the command line are numbers."""
    values = resolve(graph(), ["topology.max.spout.pending=500"], environ={}).components["in"].values
    assert values["topology.max.spout.pending"] == 500
    assert values["topology.message.timeout.secs"] == 30
    with pytest.raises(ConfigError, match=r"topology.workers = 0 .* must be greater than 0. Try: 1"):
        resolve(graph(topology_config={"topology.workers": 0}), environ={})


@pytest.mark.parametrize("tasks", [1, 4])
def test_kafka_spouts_share_the_time_for_polls(tasks):
    """Several Kafka spouts in one thread wait less each, unless the user says how long."""
    shared = resolve(graph(par=tasks), environ={}).components["in"].values["kafka.poll_timeout_ms"]
    assert shared == 200 // tasks
    given = resolve(graph(par=tasks), ["kafka.poll_timeout_ms=150"], environ={}).components["in"].values
    assert given["kafka.poll_timeout_ms"] == 150


def test_a_setting_for_an_unknown_component_is_an_error():
    with pytest.raises(ConfigError, match=r"no component 'inn'. Try: 'in'"):
        resolve(graph(), ["inn:kafka.group=g"], environ={})


def test_the_embedded_broker_is_looked_for_once_and_only_where_needed(monkeypatch):
    """kafka.bootstrap = embedded becomes the broker's address for components that read Kafka settings."""
    asked = []
    monkeypatch.setattr("downspout.broker.embedded.find_access", lambda: asked.append(1) or ("127.0.0.1:9", {}))
    spouts = graph(par=2)
    confs = configurations(spouts, resolve(spouts, environ={}))
    assert (confs["in"]["kafka.bootstrap"], confs["out"]["kafka.bootstrap"]) == ("127.0.0.1:9", "embedded")
    assert confs["in"]["storm.id"] == confs["out"]["storm.id"]
    configurations(spouts, resolve(spouts, ["kafka.bootstrap=b:1"], environ={}))
    assert asked == [1]


def test_the_topology_id_stays_until_a_redeploy():
    """A restart has the id of the first start; --redeploy counts on and takes the new time."""
    clock = VirtualClock(wall=1000.0)
    first = topology_id("flights", clock=clock)
    clock.advance(50)
    assert first == topology_id("flights", clock=clock) == "flights-1-1000"
    assert topology_id("flights", redeploy=True, clock=clock) == "flights-2-1050"
    assert topology_id("flights", clock=clock) == "flights-2-1050"
    assert topology_id("other", clock=clock) == "other-1-1050"


def test_topologies_with_similar_names_have_ids_of_their_own():
    """Characters that no file name should have, such as a slash or an umlaut, stay different in the file's name."""
    names = ["wärter", "wörter", "w_rter", "w/rter", "w rter"]
    ids = [topology_id(name, clock=VirtualClock(wall=at)) for at, name in enumerate(names)]
    assert ids == [f"{name}-1-{at}" for at, name in enumerate(names)]


def test_a_broken_state_file_is_named():
    """A state file that is not ours is an error that says what to do, not a new id in silence."""
    topology_id("a/b c", clock=VirtualClock())
    (path,) = (folders.home() / "state").iterdir()
    assert path.name == "a%2Fb%20c.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"a%2Fb%20c.json is damaged. Try: delete it"):
        topology_id("a/b c")


def test_an_unwritable_state_folder_is_named(monkeypatch, tmp_path):
    """A home that cannot hold state is an error with a cure."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DOWNSPOUT_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot read or write"):
        topology_id("x")


@pytest.mark.sweep
@pytest.mark.slow
def test_processes_that_start_together_agree_on_the_id(monkeypatch, tmp_path):
    """Members that start at the same moment, with clocks apart, get one id."""
    monkeypatch.setenv("DOWNSPOUT_HOME", str(tmp_path))
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        ids = pool.map(_id_at, [1000.0 + member for member in range(4)])
    assert len(set(ids)) == 1
    assert json.loads((tmp_path / "state" / "together.json").read_text())["id"] == ids[0]
    assert len(list((tmp_path / "state").iterdir())) == 1


def _id_at(wall):
    return topology_id("together", clock=VirtualClock(wall=wall))


@pytest.mark.parametrize("key", sorted(NUMBERS))
def test_storms_numbers_are_checked(key):
    """Text in place of one of Storm's numbers is an error with key, value and source."""
    with pytest.raises(ConfigError, match=rf"{key} = 'many' \(command line\) is no"):
        resolve(graph(), [f"{key}=many"], environ={})
    with pytest.raises(ConfigError, match=rf"{key} = -1 \(topology\) is no"):
        resolve(graph(topology_config={key: -1}), environ={})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("grup=x", "unknown setting .*grup .*. Try: kafka.group"),
        ("kafak.group=x", "unknown setting kafak.group .*. Try: kafka.group"),
        ("kafka.stop=x", "unknown setting kafka.stop .*. Try: `downspout settings` lists all"),
        ("kafka.start=NEVER", "kafka.start = 'NEVER' .*: there is no such value. Try: one of EARLIEST"),
        ("out:kafka.group=x", "Sink does not read kafka.* settings. Try: --set in:kafka.group"),
        (
            "out:run.drain_s=1",
            "run.drain_s is a setting of the whole run, not of one component. Try: --set run.drain_s",
        ),
        ("kafka.fields=origin,valeu", "'valeu' .* is not one of .* Try: value"),
        ("kafka.start=earlist", "Try: EARLIEST"),
        ("kafka.retries_max=many", "is not a whole number. Try: a whole number, such as 10"),
    ],
)
def test_a_mistake_on_the_command_line_is_told(given, message):
    """What nobody reads, and what does not fit, is an error that says what would."""
    with pytest.raises(ConfigError, match=message):
        resolve(graph(), [given], environ={})


@pytest.mark.parametrize("key", [key for key, setting in SETTINGS.items() if setting.choices])
def test_a_choice_may_be_written_in_any_case(key):
    """Each value of a setting that has a fixed set of them is known in lower, upper and mixed case, from any layer."""
    setting = SETTINGS[key]
    for choice in setting.choices:
        for written in (choice.lower(), choice.upper(), choice.title(), f" {choice} "):
            wanted = [choice] if setting.kind is list else choice
            assert setting.parse([written] if setting.kind is list else written, "spec") == wanted


def test_keys_that_the_topology_declares_can_be_set():
    """A key of the user's own is no typing error where the topology's configuration holds it, nor is one of Storm's."""
    made = graph(config={"shop.name": "a"}, topology_config={"limit": 1})
    values = resolve(made, ["shop.name=b", "limit=2", "topology.foo=3"], environ={}).components["in"].values
    assert (values["shop.name"], values["limit"], values["topology.foo"]) == ("b", 2, 3)


def test_an_unknown_table_in_the_file_is_told(tmp_path):
    (tmp_path / "downspout.toml").write_text("kafka = 3\n")
    with pytest.raises(
        ConfigError, match=r"kafka \(downspout.toml\) is a table, not a value. Try: \[kafka\], and below"
    ):
        resolve(graph(), environ={}, file=tmp_path / "downspout.toml")
    (tmp_path / "downspout.toml").write_text("[kafka]\nclient = 3\n")
    with pytest.raises(ConfigError, match=r"kafka.client .* is a table, not a value. Try: \[kafka.client\]"):
        resolve(graph(), environ={}, file=tmp_path / "downspout.toml")
    (tmp_path / "downspout.toml").write_text("[kafak]\ngroup = 'x'\n")
    with pytest.raises(ConfigError, match=r"unknown setting kafak.group \(downspout.toml\). Try: kafka.group"):
        resolve(graph(), environ={}, file=tmp_path / "downspout.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve(graph(), environ={}, file=tmp_path)


def test_an_empty_directory_is_not_set():
    """An empty value of a setting that is needed leaves it unset."""
    environ = {"DOWNSPOUT_PARQUET_DIRECTORY": "weaker"}
    values = resolve(graph(), ["parquet.directory="], environ=environ).components["out"].values
    assert values["parquet.directory"] is None

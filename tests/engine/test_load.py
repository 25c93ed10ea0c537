"""A topology's file: found, read, or refused with the reason and the line."""

import os
import sys
import textwrap
from pathlib import Path

import pytest
import streamparse

from downspout.engine import Component, Graph, Input, OutputStream, from_class
from downspout.engine import load as loading
from downspout.engine.load import load
from downspout.errors import TopologyError

HEAD = """
from streamparse import Bolt, Grouping, JavaBolt, JavaSpout, ShellBolt, Spout, Stream, Topology

class Words(Spout):
    outputs = ["word"]

class Count(Bolt):
    outputs = ["word", "count"]
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a topology file below a project's root; what its import adds is taken away afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(body, head=HEAD, name="topologies/made.py"):
        path = Path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(head + textwrap.dedent(body))
        return str(path)

    yield write
    for module in set(sys.modules) - before:
        del sys.modules[module]


def test_a_topology_becomes_a_graph(write):
    """Names, parallelism, streams, groupings and configuration are those of the class."""
    graph = load(
        write("""
        class Made(Topology):
            config = {"topology.message.timeout.secs": 7}
            words = Words.spec(par=2, config={"a": 1})
            count = Count.spec(inputs={words: Grouping.fields("word")}, par={"prod": 9, "dev": 3})
            last = Count.spec(name="end", inputs={count["default"]: Grouping.GLOBAL})
        """)
    )
    assert graph.name == "made"
    assert graph.config == {"topology.message.timeout.secs": 7}
    assert {name: component.par for name, component in graph.components.items()} == {"words": 2, "count": 3, "end": 1}
    assert graph.components["words"].config == {"a": 1}
    assert graph.components["count"].inputs == (Input("words", "default", "fields", ("word",)),)
    assert graph.components["end"].inputs == (Input("count", "default", "global"),)
    assert graph.components["count"].streams == {"default": OutputStream("default", ("word", "count"))}
    assert [bolt.name for bolt in graph.bolts] == ["count", "end"]


ERRORS = {
    "unknown stream": (
        "class Made(Topology):\n    words = Words.spec()\n    count = Count.spec(inputs=[words['wrods']])\n",
        r"made.py:11: .*has no stream 'wrods'. Try: 'default'",
    ),
    "stream that a setting declares": (
        "from bolts.aggregate import AggregateBolt\nclass Made(Topology):\n    words = Words.spec()\n"
        "    sums = AggregateBolt.spec(inputs=[words], directory='x', schema={'word': 'string'}, keys=['word'],\n"
        "        aggregates=['count'])\n"
        "    late = Count.spec(inputs=[sums['late']])\n",
        r"made.py:14: .*has no stream 'late'. Try: late=\"stream\"",
    ),
    "component of another topology": (
        "other = Words.spec(name='wrds')\nclass Made(Topology):\n    words = Words.spec()\n"
        "    count = Count.spec(inputs=[other])\n",
        r"made.py:10: count reads 'wrds', but this topology has no such component. Try: 'words'",
    ),
    "missing field": (
        "class Made(Topology):\n    words = Words.spec()\n"
        "    count = Count.spec(inputs={words: Grouping.fields('wrod')})\n",
        r"made.py:9: ValueError: Field 'wrod' specified in grouping of 'count' is not in .* of 'words'. Try: 'wor",
    ),
    "java bolt": (
        "class Made(Topology):\n    words = Words.spec()\n"
        "    count = JavaBolt.spec(full_class_name='a.B', args_list=[], inputs=[words])\n",
        r"count is a Java component, which needs a JVM. Try: run it on a Storm that has the class a.B in its lib",
    ),
    "java spout": (
        "class Made(Topology):\n    words = JavaSpout.spec(full_class_name='a.Twitter', args_list=[], outputs=['w'])\n",
        r"words is a Java component, which needs a JVM. Try: run it on a Storm that has the class a.Twitter in its lib",
    ),
    "java's kafka spout": (
        "class Made(Topology):\n"
        "    words = JavaSpout.spec(full_class_name='a.kafka.KafkaSpout', args_list=[], outputs=['w'])\n",
        r"words is a Java component, which needs a JVM. Try: put a KafkaSpout in its place: "
        r"KafkaSpout.spec\(topics=\[…\]\) reads the same topic; or run it on a Storm that has the class a.kafka.Kaf",
    ),
    "shell bolt": (
        "class Made(Topology):\n    words = Words.spec()\n"
        "    count = ShellBolt.spec(command='ruby', script='count.rb', inputs=[words])\n",
        r"count is a shell component \(ruby count.rb\)",
    ),
    "custom grouping": (
        "class Made(Topology):\n    words = Words.spec()\n"
        "    count = Count.spec(inputs={words: Grouping.custom_object('a.B', [1])})\n",
        "count: the grouping of 'words' is custom Java code",
    ),
    "direct grouping on a normal stream": (
        "class Made(Topology):\n    words = Words.spec()\n    count = Count.spec(inputs={words: Grouping.DIRECT})\n",
        "count: grouping 'direct' on 'words':'default', which is not a direct stream",
    ),
    "no spout": ("class Made(Topology):\n    pass\n", "made.py:9: ValueError: A Topology requires at least one Spout"),
    "no input": (
        "class Made(Topology):\n    words = Words.spec()\n    count = Count.spec()\n",
        "count.* requires at least one input",
    ),
    "field that is no identifier": (
        "class Bad(Spout):\n    outputs = ['a-b']\nclass Made(Topology):\n    words = Bad.spec()\n",
        "field 'a-b' of stream 'default' is not a valid name in Python",
    ),
    "import error": ("import nowhere_to_be_found\n", "made.py:9: ModuleNotFoundError: No module named 'nowhere"),
    "a spout that ours hide": (
        "import spouts.kafka\nimport spouts.mine\n",
        r"No module named 'spouts.mine'. Try: `pip install .* your own",
    ),
    "a setting that one of our bolts refuses": (
        "from bolts.parquet import ParquetBolt\nclass Made(Topology):\n    words = Words.spec()\n"
        "    sink = ParquetBolt.spec(inputs=[words], directory='d', schema=['a:strin'])\n",
        r"made.py:12: parquet.schema: a:strin: no type strin",
    ),
    "a setting that our spout refuses": (
        "from spouts.kafka import KafkaSpout\nclass Made(Topology):\n"
        "    words = KafkaSpout.spec(topics=['t'], commit_period=3)\n",
        r"made.py:11: unknown setting kafka.commit_period",
    ),
    "a source of batches in one name, as an input": (
        "from spouts.batches import KafkaBatches\nclass Made(Topology):\n"
        "    lines = KafkaBatches.spec(topics=['t'], fields=['value'])\n    count = Count.spec(inputs=[lines])\n",
        r"made.py:12: lines is 2 components, coordinator and emitter. "
        r"Try: a name for each: coordinator, lines = KafkaBatches.spec",
    ),
    "a source of batches in one name, by itself": (
        "from spouts.batches import KafkaBatches\nclass Made(Topology):\n"
        "    lines = KafkaBatches.spec(topics=['t'], fields=['value'])\n    count = Count.spec(inputs=lines)\n",
        r"made.py:10: lines is 2 components.* Try: a name for each: coordinator, lines = KafkaBatches.spec",
    ),
    "a setting that neither scope of batches has": (
        "from spouts.batches import KafkaBatches\nclass Made(Topology):\n"
        "    coordinator, lines = KafkaBatches.spec(topics=['t'], fields=['value'], record_max=5)\n",
        r"made.py:11: unknown setting kafka.record_max \(spec\). Try: batch.records_max",
    ),
    "syntax error": ("class Made(Topology:\n", "made.py:9: "),
    "error of the user's own": ("def f():\n    return 1 / 0\nf()\n", "made.py:10: ZeroDivisionError"),
    "nothing in it": ("x = 1\n", "contains no topology"),
}


@pytest.mark.parametrize(("body", "message"), ERRORS.values(), ids=ERRORS)
def test_what_is_wrong_is_said_with_its_place(write, body, message):
    """A file that cannot run is refused with the user's line, the culprit and the nearest name."""
    path = write(body)
    with pytest.raises(TopologyError, match=message):
        load(path)


TWO = """
class One(Topology):
    words = Words.spec()
    count = Count.spec(inputs=[words])

class Two(Topology):
    words = Words.spec()
    count = Count.spec(inputs=[words])
"""


def test_one_of_several_topologies_must_be_named(write):
    path = write(TWO)
    with pytest.raises(TopologyError, match=r"several topologies: One, Two\. Try: --topology One"):
        load(path)
    assert load(path, "Two").name == "made-Two"
    with pytest.raises(TopologyError, match=r"no topology 'Tow'\. Try: 'Two'"):
        load(path, "Tow")


def test_a_topology_can_be_named_by_module_and_class(write):
    write(TWO, name="flows/by_module.py")
    assert load("flows.by_module:One").name == "by_module-One"
    with pytest.raises(TopologyError, match="ModuleNotFoundError"):
        load("flows.by_modul:One")


def test_a_topology_can_be_named_by_file_and_class(write):
    path = write(TWO)
    assert load(f"{path}:Two").name == "made-Two"
    with pytest.raises(TopologyError, match=r"contains no topology 'Tow'\. Try: 'Two'"):
        load(f"{path}:Tow")
    with pytest.raises(TopologyError, match=r"topologies/mad\.py does not exist\. Try: 'topologies/made\.py'"):
        load("topologies/mad.py:Two")


def test_an_imported_topology_counts_only_where_none_is_defined(write):
    """A file that imports another file's topology to extend it holds one topology, its own."""
    body = "    words = Words.spec()\n    count = Count.spec(inputs=[words])\n"
    write(f"class Base(Topology):\n{body}", name="topologies/base_t.py")
    assert load(write(f"from base_t import Base\nclass Own(Topology):\n{body}")).name == "made"


def test_a_folder_is_answered_by_its_files(write):
    """So is the empty name, which a script passes on if a variable of its is not set."""
    folder = Path(write("")).parent
    with pytest.raises(TopologyError, match=r"topologies is a folder\. Try: one of its files: .*topologies/made\.py"):
        load(str(folder))
    with pytest.raises(TopologyError, match=r"no file is named\. Try: "):
        load("")


def test_a_missing_file_names_its_nearest_sibling(write):
    """A mistyped path is answered by the path that was meant."""
    write("")
    with pytest.raises(TopologyError, match=r"topologies/mad\.py does not exist\. Try: 'topologies/made\.py'"):
        load("topologies/mad.py")


def test_the_quickstart_project_loads_where_it_lies(monkeypatch):
    """streamparse's own wordcount is found with its src/ folder, as `sparse run` finds it."""
    project = Path(streamparse.__file__).parent / "bootstrap" / "project"
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", list(sys.path))
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in ("spouts", "bolts")}
    try:
        graph = load("topologies/wordcount.py")
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] in ("spouts", "bolts")]:
            del sys.modules[name]
        sys.modules.update(hidden)
    assert list(graph.components) == ["word_spout", "count_bolt"]


def test_a_graph_made_by_hand_is_checked_too():
    """Wiring mistakes of a graph that no metaclass has looked at are all listed, with what was meant."""

    class Words(streamparse.Spout):
        outputs = ("word",)

    class Count(streamparse.Bolt):
        pass

    graph = Graph(
        "hand",
        {
            "words": Component("words", Words, streams={"default": OutputStream("default", ("word", "word"))}),
            "a": Component("a", Count, inputs=(Input("word", "default"),)),
            "b": Component("b", Count, inputs=(Input("words", "other"), Input("words", "default", "fields", ("wrd",)))),
            "c": Component("c", Count, inputs=(Input("words", "default", "custom_object"),)),
            "d": Component("d", Count),
        },
    )
    with pytest.raises(TopologyError) as caught:
        graph.check()
    for part in (
        "names a field twice",
        "a reads 'word', but there is no such component (try 'words')",
        "b reads stream 'other'",
        "on 'wrd', but stream 'default' of 'words' has no such field (try 'word')",
        "runs only in Java",
        "d has no inputs",
    ):
        assert part in str(caught.value)


def test_a_cycle_has_an_order():
    class Words(streamparse.Spout):
        outputs = ("word",)

    class Loop(streamparse.Bolt):
        outputs = ("word",)

    class Made(streamparse.Topology):
        words = Words.spec()
        loop = Loop.spec(inputs=[words])

    graph = from_class(Made, "made")
    loop = graph.components["loop"]
    again = Component("loop", loop.cls, streams=loop.streams, inputs=(*loop.inputs, Input("loop", "default")))
    assert [bolt.name for bolt in Graph("x", {**graph.components, "loop": again}).bolts] == ["loop"]


def test_an_edit_right_after_a_load_is_seen(write):
    """A file that changes within the second of its last change, and not in size, is read again all the same."""
    body = """
        class Made(Topology):
            words = Words.spec(name="aaa")
    """
    names = []
    for name in ("aaa", "bbb"):
        path = write(body.replace("aaa", name))
        os.utime(path, (0, 0))
        names += load(path).components
    assert names == ["aaa", "bbb"]


def test_a_file_of_another_kind_is_refused(write):
    with pytest.raises(TopologyError, match=r"made\.txt is not a Python file"):
        load(write("", name="topologies/made.txt"))


def test_an_installed_downspout_says_how_its_modules_are_called(write, monkeypatch):
    """Where spouts and bolts are in the wheel's package, the cure for their short names is the long ones."""
    monkeypatch.setattr(loading, "find_spec", lambda name: name)
    monkeypatch.setattr(loading, "_CHECKOUT", Path.cwd())
    with pytest.raises(TopologyError, match=r"Try: `downspout\.bolts\.no_such_bolt`, the full name"):
        load(str(write("import bolts.no_such_bolt")))

"""Storm's promises to components, for every engine: a file that imports this provides a fixture ``evidence``."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from tests.conformance.evidence import TICKS_MIN, Evidence
from tests.conformance.project.src import stations

ROWS = set(range(60))
FEW = set(range(12))


def test_every_task_knows_who_it_is(evidence: Evidence) -> None:
    """Each task is told its own component and id, and all tasks by the same map."""
    seen = evidence.components()
    for component, task, notes in evidence.all_notes():
        tasks = notes[0]["tasks"]
        assert tasks[str(task)] == component
        assert {int(number) for number, name in tasks.items() if name == component} == seen[component]


def test_a_bolt_knows_all_streams_of_its_sources(evidence: Evidence) -> None:
    """The context lists each stream of a source with its fields, those too that the bolt does not read."""
    for reader in ("plain", "even", "both"):
        (start,) = evidence.notes(reader, "start")
        streams = start["sources"]["sorter"]
        users = {name: fields for name, fields in streams.items() if not name.startswith("__")}  # Storm has its own
        assert users == {"default": ["number"], "even": ["number", "twice"]}


def test_shuffle_reaches_one_task_and_uses_all(evidence: Evidence) -> None:
    assert evidence.numbers("shuffled") == Counter(ROWS)
    assert all(evidence.numbers("shuffled", task) for task in evidence.components()["shuffled"])


def test_fields_keep_equal_keys_together(evidence: Evidence) -> None:
    """All tuples of one key reach one task, each once, and not all keys the same task."""
    assert evidence.numbers("keyed") == Counter(ROWS)
    places = {
        (note["values"][1], task)
        for task in evidence.components()["keyed"]
        for note in evidence.notes("keyed", "got", task)
    }
    assert len(places) == 10
    assert len({task for _, task in places}) == 2


def test_all_reaches_each_task(evidence: Evidence) -> None:
    for task in evidence.components()["everywhere"]:
        assert evidence.numbers("everywhere", task) == Counter(ROWS)


def test_global_reaches_the_lowest_task(evidence: Evidence) -> None:
    lowest, other = sorted(evidence.components()["lowest"])
    assert evidence.numbers("lowest", lowest) == Counter(ROWS)
    assert not evidence.numbers("lowest", other)


def test_none_and_local_reach_one_task(evidence: Evidence) -> None:
    """``none`` and ``local_or_shuffle`` deliver each tuple once."""
    assert evidence.numbers("whoever") == evidence.numbers("nearby") == Counter(ROWS)


def test_a_tree_completes_once_when_all_have_acked(evidence: Evidence) -> None:
    """A tuple with six readers is acked once, and never failed."""
    assert evidence.ids("rows", "ack") == Counter(f"rows/{n}" for n in ROWS)
    assert not evidence.ids("rows", "fail")


def test_each_spout_task_hears_of_its_own_tuples(evidence: Evidence) -> None:
    """Two tasks of one spout use the same ids; each hears of what it emitted, as often."""
    for task in evidence.components()["few"]:
        assert evidence.ids("few", "ack", task) == evidence.ids("few", "emit", task) == Counter(f"few/{n}" for n in FEW)


def test_streams_reach_their_readers(evidence: Evidence) -> None:
    """A tuple reaches those who read its stream, with that stream's fields, name and source."""
    twice = Counter(dict.fromkeys(FEW, 2))
    even = Counter({n: 2 for n in FEW if n % 2 == 0})
    assert evidence.numbers("plain") == twice
    assert evidence.numbers("even") == even
    assert evidence.numbers("both") == twice + even
    (sorter,) = evidence.components()["sorter"]
    for note in evidence.notes("both", "got"):
        fields = ["number"] if note["stream"] == "default" else ["number", "twice"]
        assert (note["fields"], note["comp"], note["task"]) == (fields, "sorter", sorter)
    assert {note["stream"] for note in evidence.notes("even", "got")} == {"even"}


def test_direct_emits_reach_the_task_that_was_named(evidence: Evidence) -> None:
    (unaddressed,) = evidence.components()["unaddressed"]
    routed = evidence.notes("router", "routed")
    assert len(routed) == 24
    for note in routed:
        assert note["told"] == [note["target"]]
        assert note["went"] == [unaddressed]
    for task in evidence.components()["addressed"]:
        assert evidence.numbers("addressed", task) == Counter(n["number"] for n in routed if n["target"] == task)


def test_a_joined_tuple_fails_both_of_its_roots(evidence: Evidence) -> None:
    """What is anchored to two tuples fails both trees, and completes both."""
    odd_pairs = Counter(f"paired/{n}" for n in FEW if (n // 2) % 2)
    assert evidence.ids("paired", "fail") == odd_pairs
    assert evidence.ids("paired", "ack") == Counter(f"paired/{n}" for n in FEW)


def test_what_is_not_anchored_fails_nobody(evidence: Evidence) -> None:
    """A tuple that was emitted without anchors can fail without its origin hearing of it."""
    assert evidence.numbers("refuse") == Counter(FEW)
    assert evidence.ids("loosened", "ack") == Counter(f"loosened/{n}" for n in FEW)
    assert not evidence.ids("loosened", "fail")


def test_without_an_id_nobody_hears(evidence: Evidence) -> None:
    """Of a tuple without an id the spout hears neither ack nor fail."""
    assert evidence.numbers("unheard") == Counter(FEW)
    assert not evidence.notes("unanchored", "ack")
    assert not evidence.notes("unanchored", "fail")


def test_a_fail_reaches_the_spout_once(evidence: Evidence) -> None:
    assert evidence.ids("refused", "fail") == Counter(f"refused/{n}" for n in FEW)
    assert not evidence.ids("refused", "ack")


def test_what_nobody_acks_times_out(evidence: Evidence) -> None:
    """A tuple that a bolt forgot fails after the message timeout, not before; emitted again, it completes."""
    odd = Counter(f"forgotten/{n}" for n in FEW if n % 2)
    assert evidence.ids("forgotten", "fail") == odd
    assert evidence.ids("forgotten", "ack") == Counter(f"forgotten/{n}" for n in FEW)
    first_emit: dict[str, float] = {}
    for note in evidence.notes("forgotten", "emit"):
        first_emit.setdefault(note["id"], note["at"])
    for note in evidence.notes("forgotten", "fail"):
        assert note["at"] - first_emit[note["id"]] >= 19.5


def test_a_bolt_that_raises_and_lives_fails_its_tuple(evidence: Evidence) -> None:
    """With ``exit_on_exception = False`` the tuple fails, the bolt goes on, and the next try completes."""
    assert evidence.ids("raised", "fail") == Counter(f"raised/{n}" for n in FEW if n % 2)
    assert evidence.ids("raised", "ack") == Counter(f"raised/{n}" for n in FEW)


def test_a_reliable_spout_tries_again(evidence: Evidence) -> None:
    """streamparse's ReliableSpout emits what failed again, and hears the ack."""
    assert evidence.ids("reliable", "fail") == Counter(f"reliable/{n}" for n in FEW if n % 2)
    assert evidence.ids("reliable", "ack") == Counter(f"reliable/{n}" for n in FEW)


def test_ids_come_back_as_they_are(evidence: Evidence) -> None:
    """Whole numbers and any text serve as ids."""
    assert evidence.ids("ids", "ack") == Counter(n if n % 2 else f"text {n} ü" for n in FEW)


def test_values_arrive_as_they_are(evidence: Evidence) -> None:
    """Whatever JSON can say arrives equal, and of the same type."""
    for task in evidence.components()["values_kept"]:
        got = {note["values"][0]: note["values"][1] for note in evidence.notes("values_kept", "got", task)}
        assert [repr(got[number]) for number in range(len(got))] == [repr(value) for value in stations.VALUES]


def test_no_more_is_out_than_allowed(evidence: Evidence) -> None:
    """With ``topology.max.spout.pending`` no more trees are open at a time, and it is made use of."""
    assert max(note["count"] for note in evidence.notes("throttled", "out")) == 5
    assert evidence.ids("throttled", "ack") == Counter(f"throttled/{n}" for n in ROWS)


def test_a_spout_may_emit_while_it_hears_an_ack(evidence: Evidence) -> None:
    """Emits from within ``ack`` are as good as those from ``next_tuple``."""
    assert evidence.ids("chain", "ack") == Counter(f"chain/{n}" for n in FEW)


def test_ticks_come_from_the_system(evidence: Evidence) -> None:
    """A bolt that asks for ticks gets them, from ``__system`` on ``__tick``; one that does not gets none."""
    ticks = evidence.notes("chained", "tick")
    assert len(ticks) >= TICKS_MIN
    assert {(note["comp"], note["stream"]) for note in ticks} == {("__system", "__tick")}
    assert not evidence.notes("plain", "tick")


def test_batches_are_grouped_and_acked_together(evidence: Evidence) -> None:
    """A BatchingBolt gets batches of one key; one that raises fails its tuples, which come again."""
    failed = evidence.ids("batched", "fail")
    assert set(failed) >= {f"batched/{n}" for n in FEW if n % 10 == 3}
    assert set(evidence.ids("batched", "ack")) == {f"batched/{n}" for n in FEW}
    for note in evidence.notes("batch", "batch"):
        # After a batch that raised, streamparse also hands out empty ones.
        assert {f"key-{n % 10}" for n in note["numbers"]} <= {note["key"]}
    sizes: Counter[str] = Counter()
    for note in evidence.notes("batches", "got"):
        sizes[note["values"][0]] += note["values"][1]
    assert set(sizes) == {f"key-{n % 10}" for n in FEW}
    assert all(sizes[key] >= sum(f"key-{n % 10}" == key for n in FEW) for key in sizes)


def test_batches_by_time_complete(evidence: Evidence) -> None:
    """A TicklessBatchingBolt processes its batches on its own thread, and their tuples complete."""
    numbers = Counter(n for note in evidence.notes("tickless", "batch") for n in note["numbers"])
    assert numbers == Counter(FEW)
    assert evidence.ids("ticklessly", "ack") == Counter(f"ticklessly/{n}" for n in FEW)


def test_spouts_are_activated_and_deactivated(evidence: Evidence) -> None:
    for component, _, notes in evidence.all_notes():
        kinds = [note["what"] for note in notes]
        if "emit" in kinds:
            assert kinds.index("activate") < kinds.index("emit"), component
            assert kinds[-1] == "deactivate", component
        assert "next while inactive" not in kinds


def test_a_spout_is_activated_again(evidence: Evidence) -> None:
    """Deactivated from outside a spout rests until it is activated, and goes on then; its process stays the same."""
    kinds = [note["what"] for note in evidence.notes_of("steady")]
    assert [kind for kind, _ in groupby(kinds)] == ["start", *["activate", "emit", "deactivate"] * 2]


# --- chunks: on each engine a chunk is what its records are ---

CHUNK, CHUNK_FIELDS = 10, ["number", "key"]
CHUNKS = range(0, 60, CHUNK)


def test_chunks_reach_who_takes_them(evidence: Evidence) -> None:
    """A bolt with ``process_chunk`` gets each chunk whole, and what it hands on is whole again."""
    for task in evidence.components()["relay"]:
        got = evidence.notes("relay", "chunk", task)
        assert sorted(note["numbers"] for note in got) == [[*range(first, first + CHUNK)] for first in CHUNKS]
        assert all(note["fields"] == CHUNK_FIELDS for note in got)
    assert len(evidence.notes("taken", "chunk")) == 2 * len(CHUNKS)
    assert Counter(n for note in evidence.notes("taken", "chunk") for n in note["numbers"]) == twice(ROWS)
    assert not evidence.notes("relay", "got")


def test_a_bolt_for_records_gets_a_chunks_records(evidence: Evidence) -> None:
    """Each is a tuple of its own, from the component that emitted the chunk; the chunk is acked once."""
    assert evidence.numbers("apart") == twice(ROWS)
    assert {tuple(note["values"]) for note in evidence.notes("apart", "got")} == {(n, f"key-{n % 10}") for n in ROWS}
    assert {(note["comp"], tuple(note["fields"])) for note in evidence.notes("apart", "got")} == {
        ("relay", tuple(CHUNK_FIELDS))
    }
    for spout in ("pieces", "mixed", "divided"):
        assert evidence.ids(spout, "ack") == Counter(f"{spout}/{first}" for first in CHUNKS)
        assert not evidence.ids(spout, "fail")


def test_chunks_are_split_by_key(evidence: Evidence) -> None:
    """A fields grouping sends all records of one key to one task, from however many chunks they come."""
    assert evidence.numbers("by_key") == Counter(ROWS)
    places = {
        (note["values"][1], task)
        for task in evidence.components()["by_key"]
        for note in evidence.notes("by_key", "got", task)
    }
    assert len(places) == 10
    assert len({task for _, task in places}) == 2


def test_a_component_that_knows_no_chunks_gets_records(evidence: Evidence) -> None:
    """A plain streamparse bolt behind a chunk gets its records, as values."""
    assert evidence.numbers("unaware") == Counter(ROWS)
    assert {tuple(note["fields"]) for note in evidence.notes("unaware", "got")} == {tuple(CHUNK_FIELDS)}


def test_a_record_that_fails_fails_its_chunk_once(evidence: Evidence) -> None:
    """However many records of a chunk fail, the spout hears one fail of it; emitted again, it completes."""
    fails, acks = evidence.ids("spoilt", "fail"), evidence.ids("spoilt", "ack")
    assert acks == Counter(f"spoilt/{first}" for first in CHUNKS)
    assert set(fails) == set(acks)
    assert Counter(evidence.ids("spoilt", "emit")) == fails + acks


def test_batches_cut_across_chunks(evidence: Evidence) -> None:
    """A BatchingBolt gets records; a batch that raises fails the chunks that it has records of, which come again."""
    assert set(evidence.ids("heaped", "ack")) == {f"heaped/{first}" for first in CHUNKS}
    assert evidence.ids("heaped", "fail")
    for note in evidence.notes("heap", "batch"):
        assert {f"key-{n % 10}" for n in note["numbers"]} <= {note["key"]}
    numbers = Counter(n for note in evidence.notes("unhurriedly", "batch") for n in note["numbers"])
    assert numbers == Counter(ROWS)
    assert evidence.ids("unhurried", "ack") == Counter(f"unhurried/{first}" for first in CHUNKS)


def twice(numbers: set[int]) -> Counter[int]:
    """Return each of them two times: two tasks have handed it on."""
    return Counter(dict.fromkeys(numbers, 2))

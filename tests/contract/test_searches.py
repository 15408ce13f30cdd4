"""Searches in an index: the same walks by every source of nodes; a failed read fails its search."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.base.errors import CorruptSampleError, StorageError, UsageError
from iobench.record.manifest import Manifest
from iobench.serve.nodes import NodeSource, Slots, node_source
from iobench.serve.walk import Searches, check_index
from iobench.settings.scenario import SearchSpec
from iobench.storage import open_storage
from iobench.storage.local import uring
from iobench.storage.simulated.memory import MemoryStorage
from tests.conftest import MakeDataset
from tests.processes import descriptors

INDEX: dict[str, Any] = {
    "samples": 600,
    "sample_size": {"mean": 4096, "distribution": "constant"},
    "format": "tokens",
    "samples_per_shard": 200,
}
SOURCES: dict[str, Callable[[Path], Any]] = {
    "ring": lambda path: open_storage(str(path)),
    "direct": lambda path: open_storage(str(path), direct=True),
    "threads": lambda path: open_storage(f"throttled+{path}?latency=1us"),
    "memory": lambda path: MemoryStorage(
        objects={
            f"data/{each.name}": memoryview(each.read_bytes()) for each in (path / "data").iterdir()
        }
    ),
}
QUERIES = np.random.default_rng(4).integers(1 << 62, size=30)
AT_ONCE = np.zeros(len(QUERIES), np.int64)
anywhere = pytest.mark.parametrize("index", [4098], indirect=True)
"""Nodes that begin anywhere, where whole sectors are read in the same way."""


@pytest.fixture(params=[4096, 4098])
def index(make_dataset: MakeDataset, request: pytest.FixtureRequest) -> tuple[Manifest, Path]:
    """Nodes of whole sectors, and nodes that begin anywhere."""
    size = INDEX["sample_size"] | {"mean": request.param}
    return make_dataset(**INDEX | {"sample_size": size})


@pytest.fixture
def opened() -> Iterator[Callable[..., Searches]]:
    made: list[tuple[Searches, Any]] = []
    open_storage("throttled+/tmp?latency=1us").close()  # memory that Python shares once for all
    before = descriptors()
    threads = set(threading.enumerate())

    def make(manifest: Manifest, storage: Any, in_flight: int = 4, **walk: Any) -> Searches:
        made.append((Searches(manifest, storage, SearchSpec(**walk), in_flight), storage))
        return made[-1][0]

    yield make
    while made:
        searches, storage = made.pop()
        searches.close()
        storage.close()
        del searches, storage
    assert descriptors() <= before
    assert not [each for each in threading.enumerate() if each not in threads]


class Watched:
    """A source that notes which nodes each walk reads, in rounds."""

    def __init__(self, source: NodeSource, beam: int) -> None:
        self.source, self.beam = source, beam
        self.rounds: dict[int, list[list[int]]] = {}

    def begin(self, slots: np.ndarray, nodes: np.ndarray) -> None:
        for walk in np.unique(slots // self.beam).tolist():
            mine = nodes[slots // self.beam == walk].tolist()
            self.rounds.setdefault(walk, []).append(mine)
        self.source.begin(slots, nodes)

    def wait(self, until_ns: int | None) -> Any:
        return self.source.wait(until_ns)

    def close(self) -> None:
        self.source.close()


def watch(searches: Searches, beam: int) -> dict[int, list[list[int]]]:
    searches._source = watched = Watched(searches._source, beam)
    return watched.rounds


def mixed(number: int) -> int:
    mask = (1 << 64) - 1
    number = (number + 0x9E3779B97F4A7C15) & mask
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & mask
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & mask
    return number ^ (number >> 31)


def walk_of(query: int, path: Path, manifest: Manifest, reads: int, beam: int) -> list[list[int]]:
    """The rounds of one query, one node after the other, from the files."""
    size, rounds, left, state = int(manifest.samples["stored"][0]), list[list[int]](), reads, query
    files = [(path / manifest.key(shard)).read_bytes() for shard in range(3)]
    names = [mixed(query + number) for number in range(beam)]
    while left:
        rounds.append([name % 600 for name in names[:left]])
        left -= len(rounds[-1])
        state = mixed(state)
        at = state % (size - 7)
        nodes = [files[node // 200][node % 200 * size :][:size] for node in rounds[-1]]
        names = [mixed(state ^ int.from_bytes(node[at : at + 8], "little")) for node in nodes]
    return rounds


@pytest.mark.parametrize("source", SOURCES)
def test_each_source_walks_the_same_way(
    index: tuple[Manifest, Path], opened: Callable[..., Searches], source: str
) -> None:
    """What a round reads follows from the bytes of the round before, and from the query."""
    manifest, path = index
    if source in ("ring", "direct") and uring.refused():
        pytest.skip("the kernel refuses io_uring")
    searches = opened(manifest, SOURCES[source](path), 1, search_list=30, beam_width=3, spread=0.0)
    rounds = watch(searches, 3)
    issued = searches.issue(AT_ONCE[:2], QUERIES[:2], drain_s=60)
    truth = [walk_of(query, path, manifest, 23, 3) for query in QUERIES[[0, 0, 1]].tolist()]
    assert rounds[0] == [each for walk in truth for each in walk]  # the first one opens files
    assert (issued.failed.tolist(), searches.reads) == ([0, 0], 46)
    assert issued.bytes == 46 * int(manifest.samples["stored"][0])


@anywhere
@pytest.mark.parametrize("source", SOURCES)
def test_all_queries_are_answered_and_none_waits_for_nothing(
    index: tuple[Manifest, Path], opened: Callable[..., Searches], source: str
) -> None:
    manifest, path = index
    searches = opened(manifest, SOURCES[source](path), spread=0.5, search_list=10)
    instants = np.linspace(0, 30e6, len(QUERIES)).astype(np.int64)
    issued = searches.issue(instants, QUERIES, drain_s=60)
    assert (issued.ready_ns >= issued.issued_ns).all()
    assert (issued.issued_ns >= np.maximum(issued.taken_ns, instants)).all()
    assert not issued.failed.any()
    assert searches.reads == int(searches._lengths(QUERIES).sum())


@anywhere
def test_the_reads_of_queries_have_the_mean_and_the_spread_that_were_asked(
    index: tuple[Manifest, Path], opened: Callable[..., Searches]
) -> None:
    searches = opened(index[0], SOURCES["memory"](index[1]), search_list=1000, spread=0.3)
    lengths = searches._lengths(np.random.default_rng(1).integers(1 << 62, size=20_000))
    assert lengths.mean() == pytest.approx(770, rel=0.01)
    assert lengths.std() / lengths.mean() == pytest.approx(0.3, rel=0.05)


@anywhere
@pytest.mark.parametrize("source", ["ring", "threads", "memory"])
@pytest.mark.parametrize("way", ["other bytes", "shorter"])
def test_wrong_nodes_fail_the_searches_that_read_them(
    index: tuple[Manifest, Path],
    opened: Callable[..., Searches],
    tmp_path: Path,
    source: str,
    way: str,
) -> None:
    manifest, path = index
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    shard = copy / manifest.key(1)
    size = int(manifest.samples["stored"][0])
    content = bytearray(shard.read_bytes())
    for node in range(100, 140):
        content[node * size + 5] ^= 1
    shard.write_bytes(content if way == "other bytes" else content[: 100 * size + 9])
    searches = opened(manifest, SOURCES[source](copy), 1, search_list=30, spread=0.0)
    rounds = watch(searches, 4)
    issued = searches.issue(AT_ONCE, QUERIES, drain_s=60)
    gone = set(range(300, 340 if way == "other bytes" else 400))
    mine, wrong, at = rounds[0], [], 0
    for walk in [QUERIES[0], *QUERIES]:  # the first one is off the clock
        hit = False
        for nodes in walk_of(int(walk), path, manifest, 23, 4):
            assert mine[at] == nodes
            at += 1
            if hit := bool(gone & set(nodes)):
                break
        wrong.append(hit)
    assert issued.failed.tolist() == wrong[1:]
    assert sum(wrong[1:]) > 0
    told = CorruptSampleError if way == "other bytes" else StorageError
    assert isinstance(issued.failure, told)
    assert manifest.key(1) in str(issued.failure)


@anywhere
def test_an_unexpected_error_of_a_read_ends_the_window(
    index: tuple[Manifest, Path], opened: Callable[..., Searches]
) -> None:
    storage: Any = open_storage(f"throttled+{index[1]}?latency=1us")

    def read_into(*arguments: Any, **more: Any) -> int:
        raise RuntimeError("unexpected")

    storage.read_into = read_into
    searches = opened(index[0], storage)
    with pytest.raises(RuntimeError, match="unexpected"):
        searches.issue(AT_ONCE, QUERIES, drain_s=5.0)


def test_an_index_that_is_none_is_refused(make_dataset: MakeDataset) -> None:
    for spec in ({"format": "tar"}, {"format": "files", "content": "jpeg"}):
        manifest, _ = make_dataset(**spec)
        with pytest.raises(UsageError, match="generate diskann"):
            check_index(manifest)


@anywhere
def test_what_is_not_taken_in_time_is_left_out(
    index: tuple[Manifest, Path], opened: Callable[..., Searches]
) -> None:
    storage = open_storage(f"throttled+{index[1]}?latency=20ms")
    searches = opened(index[0], storage, 1, search_list=20, beam_width=1, spread=0.0)
    issued = searches.issue(AT_ONCE, QUERIES, drain_s=0.2)  # a search takes 0.3 s
    taken = issued.issued_ns >= 0
    assert 0 < taken.sum() < len(QUERIES)
    assert (issued.ready_ns[taken] > 0).all()
    assert (issued.ready_ns[~taken] == -1).all()


def test_slots_hold_a_node_wherever_it_begins(index: tuple[Manifest, Path]) -> None:
    manifest, path = index
    storage = open_storage(str(path), direct=True)
    slots = Slots(manifest, storage.alignment, 600)
    source = node_source(storage, slots)
    nodes = np.arange(600)
    source.begin(nodes, nodes)
    ended, failures = set[int](), dict[int, Any]()
    while len(ended) < 600:
        some = source.wait(None)
        ended |= set(some.slots.tolist())
        failures |= some.failures
    source.close()
    storage.close()
    content = b"".join((path / manifest.key(shard)).read_bytes() for shard in range(3))
    for node in range(600):
        start = node * slots.room + int(slots.head[node])
        at = node * slots.size
        assert bytes(slots.memory[start : start + slots.size]) == content[at : at + slots.size]
    assert not failures

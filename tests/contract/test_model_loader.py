"""Every model loader on every kind of storage: its tensors are those of the files, to a byte."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from iobench.base.errors import (
    CorruptSampleError,
    DatasetError,
    IobenchError,
    LostRankError,
    NoRoomError,
    StorageError,
    UsageError,
)
from iobench.serve.check import check_loaded, expected_checksums
from iobench.serve.loaders import MODEL_LOADERS, make_model_loader
from iobench.serve.loaders.base import Exchange, Loaded, ModelLoader
from iobench.serve.loaders.common import TORCH
from iobench.serve.weights import ALONE, RankShare, Weights, read_weights, slice_of
from iobench.storage import open_storage
from iobench.storage.base import Buffer, Storage, read_object
from iobench.storage.wrapper import Wrapper
from tests.servers.nfs import nfs_server
from tests.servers.s3 import S3Server, rclone_s3, s3_environment
from tests.small_models import bytes_to_read
from tests.weights import same_bytes, tiny, write_every_type

__all__ = ["nfs_server", "rclone_s3", "s3_environment"]

LOADERS = ("direct", "mmap", "prefetch", "eager", "runai", "fastsafetensors")

LACKS = {"fastsafetensors": {torch.complex64}}
"""Types that a library does not know."""

_numbers = itertools.count()


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Callable[..., ModelLoader]:
    """``make("direct", block_size=..)``: a loader that ends with the test."""

    def make(name: str, **options: Any) -> ModelLoader:
        loader = make_model_loader(name, options)
        request.addfinalizer(loader.close)
        return loader

    return make


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, s3_environment: Mapping[str, str]) -> str:
    """A URL below which there is nothing."""
    if request.param == "local":
        return str(tmp_path / "w")
    server: S3Server = request.getfixturevalue("rclone_s3")
    return server.url()


def put(folder: Path, url: str) -> None:
    """Copy a folder's files by way of the server, which need not see files beneath it."""
    storage = open_storage(url)
    for path in sorted(folder.iterdir()):
        with storage.create(path.name) as sink:
            sink.write(path.read_bytes())


def opened(name: str, url: str) -> Storage:
    """As this loader wants it."""
    return open_storage(url, direct=not MODEL_LOADERS.load(name).buffered and "://" not in url)


def prepared(loader: ModelLoader, url: str, share: RankShare = ALONE) -> tuple[Storage, Weights]:
    storage = opened(loader.name, url)
    weights = read_weights(storage)
    loader.prepare(storage, weights, share)
    return storage, weights


def slices(weights: Weights, share: RankShare, whole: Mapping[str, torch.Tensor]) -> Any:
    """What a rank must have of each tensor, cut by torch."""
    for stored in weights.tensors:
        part, tensor = slice_of(stored, share), whole[stored.name]
        yield (
            stored.name,
            tensor
            if part is None
            else tensor.narrow(part.axis, part.start, part.stop - part.start),
        )


def whole_tensors(weights: Weights, url: str) -> dict[str, torch.Tensor]:
    """The files' tensors by the library."""
    storage = open_storage(url)
    return {
        name: tensor
        for shard in weights.shards
        for name, tensor in load(read_object(storage, shard.key)).items()
    }


def test_the_tests_know_every_loader() -> None:
    assert set(LOADERS) == set(MODEL_LOADERS.entries())


@pytest.mark.parametrize("name", LOADERS)
def test_tensors_of_every_type_come_from_every_place(
    place: str, tmp_path: Path, make: Callable[..., ModelLoader], name: str
) -> None:
    expected = write_every_type(tmp_path / "source", without=LACKS.get(name, set()))
    put(tmp_path / "source", place)
    loader = make(name)
    if loader.local_only and "://" in place:
        with pytest.raises(UsageError, match="local files"):
            prepared(loader, place)
        return
    storage, weights = prepared(loader, place)
    sums = expected_checksums(storage, weights, ALONE)
    for _ in range(2):
        loaded = loader.load()
        assert loaded.tensors.keys() == expected.keys()
        wrong = [n for n, tensor in expected.items() if not same_bytes(loaded.tensors[n], tensor)]
        assert wrong == []
        check_loaded(loaded, sums, place)
        assert_times(loaded, len(expected))
        del loaded


def assert_times(loaded: Loaded, tensors: int) -> None:
    assert sum(each.tensors for each in loaded.assembly.values()) == tensors
    assert 0 < loaded.first_s <= loaded.load_s
    assert loaded.fetch_s is None or loaded.fetch_s <= loaded.load_s


@pytest.mark.parametrize("name", LOADERS)
def test_a_rank_has_its_slices(tmp_path: Path, make: Callable[..., ModelLoader], name: str) -> None:
    loader, place = make(name), str(tmp_path)
    weights = tiny(open_storage(place))
    if "sliced" not in loader.sharing:
        with pytest.raises(UsageError, match="'sliced'"):
            prepared(loader, place, RankShare("sliced", 0, 3))
        return
    whole = whole_tensors(weights, place)
    total = 0
    for rank in range(3):
        share = RankShare("sliced", rank, 3)
        storage, weights = prepared(loader, place, share)
        loaded = loader.load()
        for tensor, must in slices(weights, share, whole):
            assert same_bytes(loaded.tensors[tensor], must), tensor
        check_loaded(loaded, expected_checksums(storage, weights, share), place)
        total += sum(tensor.nbytes for tensor in loaded.tensors.values())
        del loaded
    norms = sum(t.nbytes for t in weights.tensors if "norm" in t.name)
    assert total == weights.nbytes + 2 * norms


class Counting(Wrapper):
    """Counts the bytes that were really read."""

    scheme = "counting"

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.count, self._lock = 0, threading.Lock()

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        done = self.inner.read_into(key, offset, buffer, once=once)
        with self._lock:
            self.count += done
        return done


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("share", [ALONE, RankShare("sliced", 1, 3)])
def test_direct_reads_the_bytes_that_were_computed(
    tmp_path: Path, make: Callable[..., ModelLoader], share: RankShare, direct: bool
) -> None:
    weights = tiny(open_storage(str(tmp_path)))
    storage = Counting(open_storage(str(tmp_path), direct=direct))
    loader = make("direct", block_size=8192, concurrency=3)
    loader.prepare(storage, weights, share)
    storage.count = 0
    loaded = loader.load()
    assert (
        loaded.bytes_read
        == storage.count
        == bytes_to_read(weights, share, alignment=storage.alignment)
    )


def in_ranks(ranks: int, work: Callable[[int], object]) -> list[object]:
    """What ``work(rank)`` returned in forked processes, or the name of its error."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def run(rank: int) -> None:
        try:
            queue.put((rank, work(rank)))
        except IobenchError as error:
            queue.put((rank, type(error).__name__))

    processes = [context.Process(target=run, args=(rank,)) for rank in range(ranks)]
    for process in processes:
        process.start()
    found = dict(queue.get() for _ in processes)
    for process in processes:
        process.join()
    return [found[rank] for rank in range(ranks)]


def test_ranks_that_exchange_read_every_byte_once(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), direct=True)
    weights = tiny(open_storage(str(tmp_path)))
    sums = expected_checksums(storage, weights, ALONE)
    exchange = Exchange(weights, 3)

    def work(rank: int) -> object:
        loader = make_model_loader("direct", {"block_size": 4096})
        loader.prepare(storage, weights, RankShare("exchange", rank, 3), exchange=exchange)
        for _ in range(2):
            loaded = loader.load()
            check_loaded(loaded, sums, "here")
        return loaded.bytes_read

    read = in_ranks(3, work)
    exchange.close()
    assert sum(int(str(count)) for count in read) == bytes_to_read(weights, ALONE, alignment=4096)


def test_ranks_that_exchange_learn_of_one_that_fails(tmp_path: Path) -> None:
    weights = tiny(open_storage(str(tmp_path)))
    exchange = Exchange(weights, 3)

    def work(rank: int) -> object:
        url = f"faulty+{tmp_path}?fail_every=1" if rank == 1 else str(tmp_path)
        loader = make_model_loader("direct")
        share = RankShare("exchange", rank, 3)
        loader.prepare(open_storage(url), weights, share, exchange=exchange)
        return loader.load().bytes_read

    found = in_ranks(3, work)
    exchange.close()
    assert found == [LostRankError.__name__, StorageError.__name__, LostRankError.__name__]


@pytest.mark.parametrize("name", ["direct", "eager"])
def test_a_read_that_fails_is_one_line_and_the_next_load_is_whole(
    tmp_path: Path, make: Callable[..., ModelLoader], name: str
) -> None:
    weights = tiny(open_storage(str(tmp_path)))
    sums = expected_checksums(open_storage(str(tmp_path)), weights, ALONE)
    storage = open_storage(f"faulty+{tmp_path}?fail_at=5")
    loader = make(name, block_size=65536, concurrency=2)
    loader.prepare(storage, weights)
    with pytest.raises(StorageError):
        loader.load()
    check_loaded(loader.load(), sums, "here")


@pytest.mark.parametrize("name", LOADERS)
def test_a_file_that_became_shorter_is_one_line(
    tmp_path: Path, make: Callable[..., ModelLoader], name: str
) -> None:
    tiny(open_storage(str(tmp_path)))
    loader = make(name)
    _, weights = prepared(loader, str(tmp_path))
    os.truncate(tmp_path / weights.shards[-1].key, weights.shards[-1].size // 2)
    with pytest.raises((StorageError, DatasetError)) as failure:
        loader.load()
    assert weights.shards[-1].key in str(failure.value) or str(tmp_path) in str(failure.value)


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """``alarm(0.2)``: KeyboardInterrupt in so many seconds."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield lambda after: signal.setitimer(signal.ITIMER_REAL, after) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", ["direct", "eager"])
def test_an_interrupt_leaves_no_thread(
    tmp_path: Path, make: Callable[..., ModelLoader], alarm: Callable[[float], None], name: str
) -> None:
    weights = tiny(open_storage(str(tmp_path)))
    before = set(threading.enumerate())
    loader = make(name, block_size=4096, concurrency=4)
    loader.prepare(open_storage(f"throttled+{tmp_path}?bandwidth=200KB"), weights)
    alarm(0.2)
    with pytest.raises(KeyboardInterrupt):
        loader.load()
    loader.close()
    # Threads of earlier tests may end meanwhile, so only those that began here are looked at.
    assert not [each for each in threading.enumerate() if each not in before]


def test_what_an_ablation_leaves_out(tmp_path: Path, make: Callable[..., ModelLoader]) -> None:
    tiny(open_storage(str(tmp_path)))
    loader = make("direct")
    storage, weights = prepared(loader, str(tmp_path))
    sums = expected_checksums(storage, weights, ALONE)
    without = loader.load(leave_out="assembly")
    assert without.tensors == {}
    assert without.bytes_read == bytes_to_read(weights, ALONE, alignment=storage.alignment)
    for shard in weights.shards:
        (tmp_path / shard.key).unlink()
    without = loader.load(leave_out="storage")
    assert without.bytes_read == 0
    check_loaded(without, sums, "here")


@pytest.mark.parametrize("name", LOADERS)
def test_only_what_a_loader_says_can_be_left_out(
    tmp_path: Path, make: Callable[..., ModelLoader], name: str
) -> None:
    tiny(open_storage(str(tmp_path)))
    loader = make(name)
    prepared(loader, str(tmp_path))
    for stage in ("storage", "assembly"):
        if stage in loader.can_leave_out:
            assert bool(loader.load(leave_out=stage).tensors) == (stage != "assembly")
        else:
            with pytest.raises(UsageError, match=stage):
                loader.load(leave_out=stage)


def test_a_missing_tensor_and_one_too_many_are_seen(
    tmp_path: Path, make: Callable[..., ModelLoader]
) -> None:
    tiny(open_storage(str(tmp_path)))
    loader = make("direct")
    storage, weights = prepared(loader, str(tmp_path))
    sums = expected_checksums(storage, weights, ALONE)
    loaded = loader.load()
    gone = loaded.tensors.pop(weights.tensors[0].name)
    with pytest.raises(CorruptSampleError, match="was not loaded"):
        check_loaded(loaded, sums, "here")
    loaded.tensors.update({weights.tensors[0].name: gone, "more": gone})
    with pytest.raises(CorruptSampleError, match="'more'"):
        check_loaded(loaded, sums, "here")


@pytest.mark.parametrize("name", LOADERS)
def test_weights_that_do_not_fit_into_memory_are_refused(
    tmp_path: Path, make: Callable[..., ModelLoader], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    tiny(open_storage(str(tmp_path)))
    monkeypatch.setattr("iobench.base.buffers.available", lambda: 1 << 20)
    with pytest.raises(NoRoomError, match="of memory are needed"):
        prepared(make(name), str(tmp_path))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"block_size": "3000"}, "multiple of 4096"),
        ({"block_size": "2GiB"}, "multiple of 4096"),
        ({"concurrency": 0}, "1 to 256"),
        ({"concurrency": "many"}, "1 to 256"),
        ({"depth": 1}, "no option 'depth'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        make_model_loader("direct", options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_a_device_that_is_not_there_is_refused(
    tmp_path: Path, make: Callable[..., ModelLoader]
) -> None:
    tiny(open_storage(str(tmp_path)))
    storage = open_storage(str(tmp_path))
    with pytest.raises(UsageError, match="no device 'cuda'"):
        make("direct").prepare(storage, read_weights(storage), device="cuda")


class HostRegister:
    """What CUDA offers to pin memory."""

    def __init__(self) -> None:
        self.pinned: list[int] = []

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        self.pinned.append(address)
        return 0

    def cudaHostUnregister(self, address: int) -> None:
        self.pinned.remove(address)


@pytest.mark.parametrize("name", LOADERS)
def test_tensors_are_copied_into_the_memory_of_a_device(
    tmp_path: Path, make: Callable[..., ModelLoader], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With a stand-in for a device, whose memory is this host's."""
    places: dict[str, torch.Tensor] = {}

    def take(tensors: Any, device: str) -> dict[str, torch.Tensor]:
        for own in tensors:
            places[own.stored.name] = torch.empty(own.shape, dtype=TORCH[own.stored.dtype])
        return places

    cuda = HostRegister()
    monkeypatch.setattr("iobench.serve.loaders.common._device_memory", take)
    monkeypatch.setattr("iobench.serve.loaders.direct._cudart", lambda: cuda)
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: None)
    tiny(open_storage(str(tmp_path)))
    loader, storage = make(name), opened(name, str(tmp_path))
    weights = read_weights(storage)
    loader.prepare(storage, weights, device="double")
    loaded = loader.load()
    sums = expected_checksums(storage, weights, ALONE)
    check_loaded(loaded, sums, "here")
    where = {each: tensor.data_ptr() for each, tensor in places.items()}
    assert {each: tensor.data_ptr() for each, tensor in loaded.tensors.items()} == where
    assert bool(cuda.pinned) == (name == "direct")
    without = loader.load(leave_out="device")
    check_loaded(without, sums, "here")
    assert not set(where.values()) & {each.data_ptr() for each in without.tensors.values()}
    loader.close()
    assert cuda.pinned == []

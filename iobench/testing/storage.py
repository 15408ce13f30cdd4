"""The contract of a storage, and helpers to write to and read from one."""

from __future__ import annotations

import os
import pickle
import threading

import numpy as np
import pytest

from ..base import buffers
from ..base.errors import StorageError, UsageError
from ..storage.base import Replacing, Storage, Versioned, read_object

SIZES = (0, 1, 4095, 4096, 4097, 100_000, (8 << 20) - 1, 8 << 20, (16 << 20) + 5)
"""Bytes of objects: around pages, and around the parts of an upload."""

WRITES = (
    *((size, both, both) for size in SIZES for both in (True, False)),
    *((4097, True, False), (4097, False, True)),
)
"""Whether a write is durable, and whether its size is told beforehand, for each size."""

MAX_WAIT_S = 120
"""Seconds after which a thread that reads counts as hanging."""


def content(size: int) -> bytes:
    """Return bytes that no codec compresses, always the same for a size."""
    return np.random.default_rng(size).bytes(size)


def read(storage: Storage, key: str, offset: int, length: int, **hint: bool) -> bytes:
    """Read any range, whatever the storage's alignment."""
    step = storage.alignment
    first = offset // step * step
    room = -(-(offset + length - first) // step) * step
    memory = buffers.private(max(room, step)).array.data[:room]
    count = storage.read_into(key, first, memory, **hint)
    return bytes(memory[: min(count, offset + length - first)][offset - first :])


def _read_at_once(storage: Storage, data: dict[str, bytes]) -> int:
    """Return how many of 8 threads, begun together, failed to read ``data`` three times."""
    begin, failed = threading.Barrier(8), []

    def go(shift: int) -> None:
        keys = list(data)[shift:] + list(data)[:shift]
        begin.wait()
        try:
            right = all(
                read(storage, key, 0, 30_000) == data[key] for _ in range(3) for key in keys
            )
        except Exception:
            right = False
        if not right:
            failed.append(shift)

    threads = [threading.Thread(target=go, args=(shift,)) for shift in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(MAX_WAIT_S)
    return len(failed) + sum(thread.is_alive() for thread in threads)


def put(storage: Storage, key: str, data: bytes = b"data") -> None:
    """Create an object."""
    with storage.create(key, size_hint=len(data)) as sink:
        sink.write(data)


class StorageContract:
    """What holds for every storage that can be written. A subclass has the fixture ``storage``."""

    @pytest.fixture
    def storage(self) -> Storage:
        """Return an empty storage."""
        raise NotImplementedError("a subclass of StorageContract needs the fixture 'storage'")

    @pytest.mark.parametrize(("size", "durable", "hinted"), WRITES)
    def test_what_is_written_is_read(
        self, storage: Storage, size: int, durable: bool, hinted: bool
    ) -> None:
        data = content(size)
        with storage.create("a/b.bin", size_hint=size if hinted else 0, durable=durable) as sink:
            for start in range(0, size, 3_000_001):
                sink.write(memoryview(data)[start : start + 3_000_001])
        storage.flush()
        assert storage.size("a/b.bin") == size
        assert read(storage, "a/b.bin", 0, size + 4096) == data
        assert [(entry.key, entry.size) for entry in storage.list()] == [("a/b.bin", size)]

    def test_ranges(self, storage: Storage) -> None:
        data = content(300_000)
        put(storage, "x", data)
        chance = np.random.default_rng(1)
        for offset, length in chance.integers(0, 310_000, size=(200, 2)).tolist():
            assert read(storage, "x", offset, length) == data[offset : offset + length]
            assert read(storage, "x", offset, length, once=True) == data[offset : offset + length]

    def test_nothing_is_overwritten(self, storage: Storage) -> None:
        put(storage, "x", b"first")
        for durable, hint in ((True, 5), (False, 5), (True, 9 << 20)):
            with (
                pytest.raises(StorageError, match="exists"),
                storage.create("x", size_hint=hint, durable=durable) as sink,
            ):
                sink.write(b"other")
        assert read(storage, "x", 0, 10) == b"first"

    @pytest.mark.parametrize("hint", [0, 9 << 20])
    def test_what_fails_leaves_no_trace(self, storage: Storage, hint: int) -> None:
        with pytest.raises(ZeroDivisionError), storage.create("x", size_hint=hint) as sink:  # noqa: PT012
            sink.write(b"half")
            raise ZeroDivisionError
        assert list(storage.list()) == []

    def test_missing_keys_are_one_clear_line(self, storage: Storage) -> None:
        for call in (
            lambda: read(storage, "no", 0, 1),
            lambda: storage.size("no"),
            lambda: storage.delete("no"),
        ):
            with pytest.raises(StorageError, match="no") as caught:
                call()
            assert "\n" not in str(caught.value)

    def test_deleted_is_gone(self, storage: Storage) -> None:
        put(storage, "x")
        storage.delete("x")
        assert list(storage.list()) == []

    @pytest.mark.parametrize("hint", [0, 9 << 20])
    def test_a_writer_that_comes_second_is_refused(self, storage: Storage, hint: int) -> None:
        """The key appears while another writer is at work: the finished object stays."""
        if not isinstance(storage, Replacing):
            pytest.skip("this storage replaces nothing")
        put(storage, "a")
        writing = storage.create("x", size_hint=hint)
        with pytest.raises(StorageError, match="exists"), writing as sink:  # noqa: PT012
            sink.write(b"late")
            storage.replace("x", b"first")
        assert read(storage, "x", 0, 100) == b"first"
        assert sorted(entry.key for entry in storage.list()) == ["a", "x"]

    def test_a_prefix_is_a_folder(self, storage: Storage) -> None:
        keys = ["4", "a", "data-1", "data/1", "data/deep/2", "data2/3"]
        for key in reversed(keys):
            put(storage, key)
        assert list(storage.list()) == list(storage.list())
        assert sorted(entry.key for entry in storage.list()) == keys
        assert sorted(entry.key for entry in storage.list("data")) == ["data/1", "data/deep/2"]
        assert [entry.key for entry in storage.list("data/deep")] == ["data/deep/2"]
        for absent in ("absent", "dat"):
            assert list(storage.list(absent)) == []
        if isinstance(storage, Versioned):
            assert sorted(storage.versions("data")) == ["data/1", "data/deep/2"]

    def test_a_version_changes_with_the_object(self, storage: Storage) -> None:
        if not isinstance(storage, Versioned):
            pytest.skip("this storage tells no versions")
        put(storage, "x", b"one")
        put(storage, "d/y", b"other")
        before = storage.versions()
        assert storage.versions() == before
        assert before.keys() == {"x", "d/y"}
        storage.delete("x")
        put(storage, "x", b"two!")
        after = storage.versions()
        assert (after["x"] != before["x"], after["d/y"] == before["d/y"]) == (True, True)

    def test_instances_travel(self, storage: Storage) -> None:
        put(storage, "x")
        try:
            copy = pickle.loads(pickle.dumps(storage))
        except UsageError as refusal:
            pytest.skip(str(refusal))
        assert copy.url == storage.url
        assert read(copy, "x", 0, 9) == b"data"
        copy.close()

    def test_threads_share_an_instance(self, storage: Storage) -> None:
        data = {f"k{number}": content(20_000 + number) for number in range(20)}
        for key, value in data.items():
            put(storage, key, value)
        wrong: list[str] = []

        def work() -> None:
            for key, value in list(data.items()) * 2:  # opened, and open already
                if read(storage, key, 0, len(value)) != value:
                    wrong.append(key)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    def test_a_forked_process_reads_on(self, storage: Storage) -> None:
        put(storage, "x", content(50_000))
        assert read(storage, "x", 0, 50_000) == content(50_000)  # handles are open now
        child = os.fork()
        if child == 0:
            os._exit(0 if read(storage, "x", 0, 50_000) == content(50_000) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert read(storage, "x", 0, 50_000) == content(50_000)

    def test_threads_of_a_forked_process_begin_at_once(self, storage: Storage) -> None:
        """Their first reads are simultaneous: none may drop what another has just opened."""
        data = {f"many/{number}": content(20_000 + number) for number in range(8)}
        for key, value in data.items():
            put(storage, key, value)
        readers = [threading.Thread(target=read, args=(storage, key, 0, 30_000)) for key in data]
        for reader in readers:  # the parent has something open for each
            reader.start()
        for reader in readers:
            reader.join()
        for _ in range(3):
            child = os.fork()
            if not child:
                os._exit(_read_at_once(storage, data))
            assert os.waitpid(child, 0)[1] == 0
        assert all(read(storage, key, 0, 30_000) == value for key, value in data.items())

    def test_a_small_object_can_be_replaced(self, storage: Storage) -> None:
        """Whether it exists or not, in a folder or not; nothing else is left or lost."""
        if not isinstance(storage, Replacing):
            pytest.skip("this storage replaces nothing")
        put(storage, "other", b"stays")
        for key in ("x", "deep/er/y"):
            for text in (b"first", b"and a longer one", b"short"):
                storage.replace(key, text)
                assert read(storage, key, 0, 100, once=True) == text
                assert storage.size(key) == len(text)
        assert sorted(entry.key for entry in storage.list()) == ["deep/er/y", "other", "x"]
        assert read(storage, "other", 0, 100) == b"stays"

    def test_a_small_object_that_another_process_replaced_is_read_anew(
        self, storage: Storage
    ) -> None:
        """As marker, manifest and lock are: what counts is the object that has the name now."""
        try:
            other = pickle.loads(pickle.dumps(storage))
        except UsageError:  # it lives in this process alone
            other = storage
        put(storage, "x", b"first")
        assert read_object(storage, "x") == b"first"
        for text in (b"other", b"and a longer one", b"short"):
            other.delete("x")
            put(other, "x", text)
            assert read_object(storage, "x") == text

    def test_a_small_object_can_be_made_only_where_there_is_none(self, storage: Storage) -> None:
        if not isinstance(storage, Replacing):
            pytest.skip("this storage replaces nothing")
        storage.replace("deep/x", b"first", only_new=True)
        assert isinstance(storage.exclusive_create, bool)
        with pytest.raises(StorageError, match="exists"):
            storage.replace("deep/x", b"other", only_new=True)
        assert read(storage, "deep/x", 0, 100) == b"first"
        assert [entry.key for entry in storage.list()] == ["deep/x"]

    def test_who_reads_while_it_is_replaced_sees_one_or_the_other(self, storage: Storage) -> None:
        if not isinstance(storage, Replacing):
            pytest.skip("this storage replaces nothing")
        versions = [bytes([65 + number]) * 1024 for number in range(10)]
        storage.replace("x", versions[0])
        ended, strange = threading.Event(), []

        def look() -> None:
            while not ended.is_set():
                try:
                    found = read(storage, "x", 0, 2000, once=True)
                except StorageError as error:
                    strange.append(str(error))
                else:
                    if found not in versions:
                        strange.append(str(found[:20]))

        reader = threading.Thread(target=look)
        reader.start()
        try:
            for version in versions:
                storage.replace("x", version)
        finally:
            ended.set()
            reader.join()
        assert strange == []
        assert read(storage, "x", 0, 2000, once=True) == versions[-1]

    def test_close_is_not_the_end(self, storage: Storage) -> None:
        put(storage, "x")
        assert read(storage, "x", 0, 4) == b"data"
        storage.close()
        assert read(storage, "x", 0, 4) == b"data"

    def test_it_describes_itself(self, storage: Storage) -> None:
        facts = storage.facts()
        assert facts["url"] == storage.url
        assert facts["scheme"]
        assert (facts.get("page_cache") is False) == (not storage.traits.page_cache)
        assert storage.traits.uncached == (storage.traits.direct or not storage.traits.page_cache)

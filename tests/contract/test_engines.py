"""The contract of a read engine: the same bytes, counts and errors from each of them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.base import buffers
from iobench.base.errors import StorageError
from iobench.load.engines import uring
from iobench.load.engines.base import Columns, Extent, ReadEngine
from iobench.storage.local.storage import ALIGNMENT, LocalStorage
from tests.engines import end, open_engine

CONTENT = np.random.default_rng(5).integers(0, 200, 100_000, np.uint8).tobytes()
UNREAD = b"\xee"  # which is not in the content
MEMORY = buffers.private(1 << 20).array
SIZES = {"data/none": None, "data/empty": 0, "data/one": 1, "data/511": 511, "page": 4096} | {
    "data/odd": 12_345,
    "data/large": 100_000,
}
"""Of each file; None: there is none."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    (root / "data").mkdir()
    for key, size in SIZES.items():
        if size is not None:
            (root / key).write_bytes(CONTENT[:size])
    return root


class Batch(NamedTuple):
    """What is asked of an engine in one reading. ``counted``: without memory."""

    extents: list[Extent]
    counted: bool
    columns: bool


@st.composite
def batches(draw: st.DrawFn, step: int) -> Batch:
    """A few extents of these files, of which few end too early or do not exist."""
    extents: list[Extent] = []
    landing = 0
    for _ in range(draw(st.integers(0, 6))):
        key = draw(st.sampled_from([*SIZES][1:] * 5 + ["data/none"]))
        size = SIZES[key] or 0
        offset = draw(st.integers(0, size)) // step * step
        length = -(-draw(st.integers(0, 20_000)) // step) * step
        there = min(length, max(0, size - offset))
        few = draw(st.sampled_from([0] * 9 + [1]))
        needed = min(length, draw(st.sampled_from([there, there, there // 2])) + few)
        extents.append(Extent(key, offset, length, landing, needed))
        landing += length + step  # nothing may be written between two extents
    return Batch(extents, draw(st.booleans()), draw(st.booleans()))


def told(batch: Batch, block: int, room: int) -> tuple[int, bytes, list[int], set[str]]:
    """What a reading must come to: bytes counted, memory, calls of ``then``, possible errors."""
    total, memory, landings, errors = 0, bytearray(UNREAD * room), [], set()
    for key, offset, length, landing, needed, _ in batch.extents:
        size = SIZES[key]
        if size is None:
            errors.add(f"cannot open .*{key}: No such file or directory")
            continue
        part = CONTENT[:size][offset : offset + length]
        total += len(part)
        memory[landing : landing + length] = part.ljust(length, UNREAD)
        if len(part) < needed:
            # Of blocks that all end too early, any may be told.
            for start in range(0, length, block):
                have = min(max(0, len(part) - start), block)
                want = min(max(0, needed - start), block)
                if have < want:
                    first = offset + start
                    errors.add(
                        f"^{key} ends at byte {first + have}, but {first + want} bytes were exp"
                    )
        elif length <= block:
            landings.append(landing)
    return total, bytes(memory), sorted(landings), errors


@given(data=st.data())
def test_any_reads_come_to_the_same(root: Path, engine: str, data: st.DataObject) -> None:
    """Extents of any kind, begun and waited for in any order, against what the files hold."""
    direct = data.draw(st.booleans(), "direct")
    step = ALIGNMENT if direct else 1
    few = data.draw(st.lists(batches(step), min_size=1, max_size=4), "batches")
    block = -(-data.draw(st.sampled_from([1000, 4096, 9000, 65_536]), "block") // step) * step
    # Reads of so many bytes follow one another in the kernel; memory is registered in such pieces.
    for name, sizes in (("_LARGE", [1, 256 << 10]), ("LARGEST_BUFFER", [4096, 12_288, 1 << 30])):
        patch.object(uring, name, data.draw(st.sampled_from(sizes), name)).start()
    once = data.draw(st.booleans(), "once")
    reads = open_engine(
        engine,
        LocalStorage(root, direct=direct),
        concurrency=data.draw(st.sampled_from([1, 2, 5, 40]), "concurrency"),
        block_size=block,
        once=once,
    )
    if data.draw(st.booleans(), "reserve"):
        reads.reserve()
    for start in data.draw(st.sampled_from([(), (0,), (0, 1, 3)]), "registered"):
        reads.register(MEMORY.reshape(4, -1)[start:].reshape(-1).data)
    together = data.draw(st.booleans(), "begun together")
    order = data.draw(st.permutations(range(len(few))), "order of waits")
    memories = MEMORY.reshape(4, -1)
    MEMORY[:] = UNREAD[0]
    landed: list[list[int]] = [[] for _ in few]
    begun = {}
    try:
        if together:
            for number, batch in enumerate(few):
                begun[number] = reads.begin(*asked(batch, memories[number], landed[number]))
        for number in order:
            batch = few[number]
            count, expected, landings, errors = told(batch, block, len(memories[number]))
            if errors:
                with pytest.raises(StorageError, match="|".join(errors)) as caught:
                    result(reads, begun.get(number), batch, memories[number], landed[number])
                assert len(str(caught.value).splitlines()) == 1
                continue
            found = result(reads, begun.get(number), batch, memories[number], landed[number])
            assert found == count
            if not batch.counted:
                for *_, length, landing, _, _ in batch.extents if direct else ():
                    # The kernel may clear the rest of the file's last block.
                    at = slice(landing, landing + length)
                    read = expected[at].rstrip(UNREAD)
                    memories[number][at][len(read) :] = UNREAD[0]
                assert bytes(memories[number]) == expected
                assert sorted(landed[number]) == landings
        lengths = [each.length for batch in few for each in batch.extents]
        assert reads.issued == (1 + once) * sum(max(1, -(-each // block)) for each in lengths)
    finally:
        end(reads)
        patch.stopall()


def asked(
    batch: Batch, memory: np.ndarray, landed: list[int]
) -> tuple[list[Extent] | Columns, memoryview | None, object]:
    extents = Columns.of(batch.extents) if batch.columns else batch.extents
    if batch.counted:
        return extents, None, None
    return extents, memory.data, landed.append


def result(
    reads: ReadEngine, begun: object, batch: Batch, memory: np.ndarray, landed: list[int]
) -> int:
    if begun is not None:
        return reads.wait(begun)
    return reads.read(*asked(batch, memory, landed))


@pytest.mark.parametrize("once", [False, True])
def test_a_folder_that_is_gone_is_an_error_of_the_storage(
    tmp_path: Path, engine: str, once: bool
) -> None:
    reads = open_engine(engine, LocalStorage(tmp_path / "gone"), once=once)
    with pytest.raises(StorageError, match=r"cannot open .*/gone.*: No such file or directory"):
        reads.read([Extent("x", 0, 10, 0, 10)], None)
    end(reads)

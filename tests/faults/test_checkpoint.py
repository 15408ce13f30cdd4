"""Checkpoints that fail: a full disk, kill -9, damage, bombs, strangers. The one before stays, and
nothing wrong is ever restored.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import pickle
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from iobench.base.errors import (
    CheckpointError,
    CorruptCheckpointError,
    IobenchError,
    StorageError,
    TargetRefusedError,
)
from iobench.checkpoint import make_writer
from iobench.checkpoint import place as place_module
from iobench.checkpoint.base import Job
from iobench.checkpoint.catalog import CheckpointRoot, CheckpointTarget
from iobench.checkpoint.manifest import MANIFEST
from iobench.checkpoint.place import CHECKPOINTS
from tests.checkpoints import blank, make_state, plant, restore, same, save
from tests.children import in_child
from tests.processes import PATIENCE_S, tmpfs, wait_until
from tests.servers.faultproxy import Fault, FaultProxy
from tests.servers.s3 import BUCKET, S3Server, rclone_s3, s3_environment

__all__ = ["rclone_s3", "s3_environment"]

# Where a save by DCP fails, torch leaves streams that can't be closed, which Python 3.13 tells.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Exception ignored in. <(torch\.distributed\.checkpoint|_io\.BytesIO):"
    "pytest.PytestUnraisableExceptionWarning"
)

FILE_WRITERS = ("torch", "safetensors", "stream")
ALONE = ("torch", "safetensors", "dcp", "stream")
"""One of each kind of file."""


def claimed(path: Path) -> CheckpointRoot:
    root = CheckpointRoot.open(str(path))
    root.claim()
    return root


def attempt(work: Callable[..., Any], *arguments: Any) -> IobenchError | None:
    """How it failed, in words for the user; None where it did not."""
    try:
        work(*arguments)
    except IobenchError as error:
        return error
    return None


def data_files(target: CheckpointTarget) -> list[Path]:
    return [path for name in target.manifest().files() if (path := target.path(name)) is not None]


@pytest.mark.parametrize("writer", [*ALONE, "dcp-async", "stream-async"])
def test_each_write_can_fail(tmp_path: Path, writer: str) -> None:
    """The N-th write into the storage fails: the first ones, some in the middle, and the last,
    which are the part and the manifest.
    """
    state, newer = make_state(1, large=3000), make_state(2, large=3000)
    counted = CheckpointRoot.open(f"faulty+{tmp_path}/counted?fail_write_at=1000000")
    counted.claim()
    save(writer, counted, 2, newer)
    writes = counted.storage._writes.next() - 2  # without the claim's own, and this one  # type: ignore[attr-defined]
    plain = claimed(tmp_path / "c")
    save(writer, plain, 1, state)
    middle = range(3, writes, max(1, writes // 5))
    for number in sorted({1, 2, *middle, writes - 2, writes - 1, writes} & {*range(1, writes + 1)}):
        failure = attempt(
            save,
            writer,
            CheckpointRoot.open(f"faulty+{tmp_path}/c?fail_write_at={number}"),
            2,
            newer,
        )
        assert isinstance(failure, StorageError)
        assert "simulated" in str(failure)
        assert plain.latest() == plain.step(1)
        assert not list((tmp_path / "c").rglob("*.part"))
        if plain.partial():  # the first write may leave nothing at all
            assert plain.partial() == [plain.step(2)]
            plain.remove(plain.step(2))
        assert plain.partial() == []
    again = blank(state)
    restore(writer, plain.step(1), again)
    assert same(again, state)
    assert (
        attempt(
            save,
            writer,
            CheckpointRoot.open(f"faulty+{tmp_path}/c?fail_write_at={writes + 1}"),
            2,
            newer,
        )
        is None
    )
    assert plain.latest() == plain.step(2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with tmpfs("size=16m", tmp_path / "disk") as mount:
        yield mount


@pytest.mark.parametrize("writer", [*ALONE, "torch-async", "dcp-async"])
def test_the_disk_is_full_in_the_middle(small_disk: Path, writer: str) -> None:
    small, large = make_state(large=100_001), make_state(large=7_000_001)
    root = claimed(small_disk / "c")
    save(writer, root, 1, small)
    with pytest.raises(StorageError, match=r"No space left|MiB are free"):
        save(writer, root, 2, large)
    assert root.latest() == root.step(1)
    step = small_disk / "c" / "step-00000002"
    if not writer.startswith("dcp"):  # which writes many files, of which some are whole
        assert list(step.iterdir()) == []
    for target in root.partial():
        root.remove(target)
    assert list(step.glob("*")) == []
    again = blank(small)
    restore(writer, root.step(1), again)
    assert same(again, small)
    save(writer, root, 2, small)
    assert root.latest() == root.step(2)


def test_no_folder_is_left_behind_a_storage_of_known_speed(tmp_path: Path) -> None:
    claimed(tmp_path / "c")
    slow = CheckpointRoot.open(f"throttled+{tmp_path}/c?write_bandwidth=1GB")
    for step in (1, 2):
        save("stream", slow, step, make_state(large=1000))
    slow.remove(slow.step(1))
    assert not (tmp_path / "c" / "step-00000001").exists()
    slow.clean()
    assert [*tmp_path.glob("c/*")] == []


@pytest.mark.parametrize("writer", ["stream", "dcp"])
def test_kill_9_in_the_middle(tmp_path: Path, writer: str) -> None:
    root, state = claimed(tmp_path / "c"), make_state(1, large=1000)
    save(writer, root, 1, state)
    slow = CheckpointRoot.open(f"throttled+{tmp_path}/c?write_bandwidth=2MB")
    victim = multiprocessing.get_context("fork").Process(
        target=save, args=(writer, slow, 2, make_state(2, large=4_000_001))
    )
    victim.start()
    part = tmp_path / "c" / "step-00000002"
    wait_until(lambda: any(part.glob("*.part")) or not victim.is_alive(), "no save began")
    victim.kill()
    victim.join()
    assert victim.exitcode == -signal.SIGKILL  # it was not too late
    assert root.latest() == root.step(1)
    assert root.partial() == [root.step(2)]
    again = blank(state)
    latest = root.latest()
    assert latest is not None
    restore(writer, latest, again)
    assert same(again, state)
    removal = root.remove(root.step(2))
    assert removal.foreign == []
    assert not part.exists()
    save(writer, root, 2, state)
    assert root.latest() == root.step(2)


@pytest.mark.parametrize("writer", ALONE)
def test_a_changed_byte_is_found_or_changes_nothing(tmp_path: Path, writer: str) -> None:
    root, state = claimed(tmp_path / "c"), make_state(large=3000)
    target = save(writer, root, 1, state)
    generator = random.Random(3)
    found = 0
    for path in data_files(target):
        whole = path.read_bytes()
        places = {
            *range(0, 60, 13),
            *range(len(whole) - 300, len(whole), 59),
            *(generator.randrange(len(whole)) for _ in range(8)),
        }
        for place in sorted(places):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << generator.randrange(8)
            path.write_bytes(damaged)
            again = blank(state)
            failure = attempt(restore, writer, target, again)
            if failure is None:
                assert same(again, state), f"byte {place} of {path.name}"
                continue
            found += 1
            assert isinstance(failure, CorruptCheckpointError)
            assert str(target.path()) in str(failure)
            path.write_bytes(whole)
    assert found > 10
    again = blank(state)
    restore(writer, target, again)
    assert same(again, state)


@pytest.mark.parametrize("writer", ALONE)
def test_truncated_and_missing_files_are_named(tmp_path: Path, writer: str) -> None:
    root, state = claimed(tmp_path / "c"), make_state(large=3000)
    target = save(writer, root, 1, state)
    for path in data_files(target):
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        with pytest.raises(
            CorruptCheckpointError,
            match=(
                f"{path.name} is corrupt: it has {len(whole) - 1} bytes, but {len(whole)} were "
                "saved"
            ),
        ):
            restore(writer, target, blank(state))
        path.unlink()
        with pytest.raises(CorruptCheckpointError, match=f"{path.name} is corrupt: it is missing"):
            restore(writer, target, blank(state))
        path.write_bytes(whole)


class Bomb:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.canary),)


@pytest.mark.parametrize("kind", ["zip", "old", "plain"])
def test_a_pickle_bomb_is_never_executed(tmp_path: Path, kind: str) -> None:
    root, state, canary = claimed(tmp_path / "c"), make_state(large=100), tmp_path / "canary"
    target = save("torch", root, 1, state)
    bomb = tmp_path / "bomb"
    if kind == "plain":
        bomb.write_bytes(pickle.dumps({**state, "step": Bomb(canary)}))
    else:
        torch.save(
            {**state, "step": Bomb(canary)}, bomb, _use_new_zipfile_serialization=kind == "zip"
        )
    plant(target, "rank-0000.pt", bomb.read_bytes())
    with pytest.raises(CorruptCheckpointError, match=r"rank-0000\.pt is corrupt"):
        restore("torch", target, blank(state))
    assert not canary.exists()


def test_a_bomb_among_the_values_of_dcp_is_never_executed(tmp_path: Path) -> None:
    root, state, canary = claimed(tmp_path / "c"), make_state(large=100), tmp_path / "canary"
    target = save("dcp", root, 1, state)
    metadata_path, data_path = target.path(".metadata"), target.path("__0_0.distcp")
    metadata = pickle.loads(metadata_path.read_bytes())
    buffer = io.BytesIO()
    torch.save(Bomb(canary), buffer)
    for index, place in metadata.storage_data.items():
        if index.fqn == "rank-0000/step":
            place.offset, place.length = data_path.stat().st_size, len(buffer.getvalue())
    plant(target, "__0_0.distcp", data_path.read_bytes() + buffer.getvalue())
    plant(target, ".metadata", pickle.dumps(metadata))
    with pytest.raises(
        CorruptCheckpointError, match=r"__0_0\.distcp is corrupt.*nothing was executed"
    ):
        restore("dcp", target, blank(state))
    assert not canary.exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda m: m["parts"][0]["files"].update({"../../secret": 1}),
            "a file that no writer makes",
        ),
        (lambda m: m["parts"][0]["files"].update({"rank-0000.pt": -1}), "not a whole number"),
        (lambda m: m["parts"].clear(), "ranks"),
        (lambda m: m["parts"][0].update(files=[]), "can't be read"),
        (lambda m: m["parts"][0].update(file_checksums=None), "can't be read"),
        (lambda m: m.update(version=99), "99"),
        (lambda m: m.pop("writer"), "no 'writer'"),
        (lambda m: m["parts"][0].update(xxh3="0" * 16), "committed"),
        (lambda m: m.update(base={"step": 1, "xxh3": ""}), "not an earlier step"),
        (lambda m: m.update(base={"step": -1, "xxh3": ""}), "not a whole number"),
        (lambda m: m.update(base=[]), "can't be read"),
    ],
)
def test_a_manifest_that_was_tampered_with(tmp_path: Path, change: Any, why: str) -> None:
    target = save("torch", claimed(tmp_path / "c"), 1, {"x": torch.ones(3)})
    path = target.path(MANIFEST)
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(CorruptCheckpointError, match=why):
        restore("torch", target, {"x": torch.zeros(3)})
    for text in ("{", "[" * 200_000):
        path.write_text(text)
        with pytest.raises(CorruptCheckpointError, match="can't be read"):
            restore("torch", target, {"x": torch.zeros(3)})


def based(path: Path) -> CheckpointRoot:
    """Two whole checkpoints, and after each of them two with what changed since."""
    root, state = claimed(path), {"x": torch.ones(3), "y": torch.ones(3)}
    for step in (1, 4):
        base = save("torch", root, step, state).manifest().as_base()
        for later in (step + 1, step + 2):
            save("torch", root, later, {"x": torch.ones(3)}, base=base)
    return root


def restorable(root: CheckpointRoot) -> list[int]:
    """The complete checkpoints; each of them must have what a restore of it reads."""
    return [target.number for target in root.complete() if target.sources()]


@pytest.mark.parametrize(("last", "left"), [(1, [4, 6]), (2, [4, 5, 6]), (4, [1, 3, 4, 5, 6])])
def test_a_whole_state_stays_as_long_as_what_is_based_on_it(
    tmp_path: Path, last: int, left: list[int]
) -> None:
    root = based(tmp_path / "c")
    root.keep(last)
    assert restorable(root) == left


@pytest.mark.parametrize(
    "remove",
    [
        lambda root: root.keep(1),
        lambda root: root.leave(above=0),
        lambda root: root.leave(above=2),
        lambda root: root.clean(),
    ],
)
def test_a_removal_that_is_interrupted_leaves_nothing_without_its_base(
    tmp_path: Path, remove: Callable[[CheckpointRoot], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each checkpoint that is removed, those that are still there can be restored."""
    root, seen = based(tmp_path / "c"), []
    remove_step = place_module.remove_step

    def looked(*given: Any) -> Any:
        removal = remove_step(*given)
        seen.append(restorable(root))
        return removal

    monkeypatch.setattr(place_module, "remove_step", looked)
    remove(root)
    assert len(seen) > 1


def test_a_base_that_is_missing_or_another_one_is_told_in_one_line(tmp_path: Path) -> None:
    root = based(tmp_path / "c")
    save("torch", root, 7, {"x": torch.ones(3), "y": torch.zeros(3)})
    first, whole = root.step(4).path(MANIFEST), root.step(7).path(MANIFEST)
    assert first is not None
    assert whole is not None
    text = first.read_bytes()
    first.write_bytes(whole.read_bytes())
    with pytest.raises(CorruptCheckpointError, match="step-00000004, where another checkpoint is"):
        root.step(6).sources()
    first.write_bytes(text[:-9])
    with pytest.raises(CorruptCheckpointError, match=r"step-00000004/checkpoint\.json is corrupt"):
        root.step(6).sources()
    root.remove(root.step(4))
    with pytest.raises(CorruptCheckpointError, match="step-00000004, which is missing"):
        root.step(6).sources()
    assert root.step(3).sources() == [root.step(1), root.step(3)]


def test_foreign_files_are_refused_and_never_removed(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "thesis.txt").write_text("the only copy")
    with pytest.raises(TargetRefusedError, match="is not empty"):
        claimed(tmp_path / "c")
    with pytest.raises(TargetRefusedError, match=f"no {CHECKPOINTS.marker}"):
        CheckpointRoot.open(str(tmp_path / "c")).clean()
    root = claimed(tmp_path / "d")
    target = save("torch", root, 1, {"x": torch.ones(3)})
    (tmp_path / "d" / "step-00000001" / "thesis.txt").write_text("the only copy")
    assert root.remove(target).foreign == ["thesis.txt"]
    root.clean()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["thesis.txt"] * 2


@pytest.mark.parametrize("writer", ALONE)
def test_another_number_of_ranks(tmp_path: Path, writer: str) -> None:
    root, state = claimed(tmp_path / "c"), make_state(large=100)
    target = save(writer, root, 1, state)
    with pytest.raises(CheckpointError, match=r"was saved by 1 ranks.*[Uu]se --ranks 1"):
        restore(
            writer, target, blank(state), Job(rank=0, world=2, rendezvous=f"file://{tmp_path}/meet")
        )


def test_an_upload_that_is_refused_in_the_middle_leaves_nothing(
    rclone_s3: S3Server, s3_environment: Mapping[str, str]
) -> None:
    writer = "stream"
    with FaultProxy(rclone_s3.port) as proxy:
        url = rclone_s3.url(part_size="5MiB")
        root = CheckpointRoot.open(url.replace(str(rclone_s3.port), str(proxy.port)))
        root.claim()
        small, large = make_state(large=1000), make_state(large=4_000_001)
        save(writer, root, 1, small)
        # Is there a manifest? Is there such a key? Begin the upload; a part; and the next one is
        # refused.
        proxy.plan.extend([*[Fault()] * 4, Fault(answer=(403, "AccessDenied"))])
        failure = attempt(save, writer, root, 2, large)
        assert not proxy.plan
        assert isinstance(failure, StorageError)
        assert root.latest() == root.step(1)
        assert [entry.key for entry in root.storage.list("step-00000002")] == []
        assert root.storage.discard_unfinished(lambda key: True) == ()  # type: ignore[attr-defined]
        save(writer, root, 2, large)
        again = blank(large)
        restore(writer, root.step(2), again)
        assert same(again, large)


def test_uploads_of_a_killed_save_are_removed_and_those_of_others_stay(
    rclone_s3: S3Server, s3_environment: Mapping[str, str]
) -> None:
    root, client = CheckpointRoot.open(rclone_s3.url()), rclone_s3.client()
    root.claim()
    save("stream", root, 1, make_state())
    place = root.url.removeprefix(f"s3://{BUCKET}/")
    for key in ("step-00000001/of-a-user", "step-00000002/rank-0000.tensors"):
        client.create_multipart_upload(Bucket=BUCKET, Key=f"{place}/{key}")
    root.clean()
    assert list(root.storage.list()) == []
    theirs = ("step-00000001/of-a-user",)
    assert root.storage.discard_unfinished(lambda key: True) == theirs  # type: ignore[attr-defined]


def _rank_beside_a_dying_one(rank: int, folder: str, pipe: Any, together: Any) -> None:
    writer = make_writer("dcp", Job(rank=rank, world=2, rendezvous=f"file://{folder}/meet"))
    writer.group.open()  # type: ignore[attr-defined]
    together.wait(PATIENCE_S)  # the other one has opened it as well
    if rank == 1:
        os._exit(1)
    failure = attempt(
        lambda: writer.save(make_state(), CheckpointRoot.open(f"{folder}/c").step(1)).wait()
    )
    pipe.send(f"{type(failure).__name__}: {failure}")


@pytest.mark.nightly
def test_a_rank_that_dies_ends_the_others_save(tmp_path: Path) -> None:
    root, context = claimed(tmp_path / "c"), multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (str(tmp_path), theirs, context.Barrier(2))
    ranks = [
        context.Process(target=_rank_beside_a_dying_one, args=(rank, *arguments))
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    assert ours.poll(PATIENCE_S)
    answer = ours.recv()
    for process in ranks:
        process.join(PATIENCE_S)
        process.kill()
    assert answer.startswith("StorageError: cannot write")
    assert "\n" not in answer
    assert root.latest() is None


def test_a_rank_that_died_is_named(tmp_path: Path) -> None:
    root, state = claimed(tmp_path / "c"), make_state(large=100)
    writer, target = make_writer("stream", Job(rank=0, world=2)), root.step(1)
    target.publish(writer.save(state, target).wait(), rank=0)
    with pytest.raises(CheckpointError, match="rank 1 of 2 did not finish"):
        target.commit(writer="stream", world=2)
    assert root.latest() is None
    assert root.partial() == [target]
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        restore("stream", target, blank(state))


@pytest.mark.parametrize("writer", ALONE)
def test_a_state_of_another_shape_is_refused_before_anything_is_read(
    tmp_path: Path, writer: str
) -> None:
    root = claimed(tmp_path / "c")
    target = save(writer, root, 1, {"x": torch.ones(3), "step": 1})
    for other, why in (
        ({"x": torch.ones(4), "step": 1}, r"has float32\[3\] for 'x', the state has float32\[4\]"),
        (
            {"x": torch.ones(3).half(), "step": 1},
            r"has float32\[3\] for 'x', the state has float16\[3\]",
        ),
        ({"x": torch.ones(3), "step": 1, "y": 2}, "has nothing for 'y', the state has int"),
        ({"step": 1}, r"has float32\[3\] for 'x', the state has nothing"),
    ):
        with pytest.raises(CheckpointError, match=why):
            restore(writer, target, other)


@pytest.mark.parametrize("writer", ALONE)
def test_a_step_is_never_written_over(tmp_path: Path, writer: str) -> None:
    root, state = claimed(tmp_path / "c"), {"x": torch.ones(3)}
    target = save(writer, root, 1, state)
    with pytest.raises(CheckpointError, match="checkpoint"):
        save(writer, root, 1, state)
    root.storage.delete(target.key(MANIFEST))
    with pytest.raises(IobenchError, match=r"exists|is there already|partial"):
        save(writer, root, 1, state)
    root.remove(target)
    save(writer, root, 1, state)


def test_another_writers_checkpoint(tmp_path: Path) -> None:
    target = save("torch-nocrc", claimed(tmp_path / "c"), 1, {"x": torch.ones(3)})
    with pytest.raises(
        CheckpointError, match=r"saved by the writer 'torch-nocrc', which 'stream' can't read"
    ):
        restore("stream", target, {"x": torch.zeros(3)})
    restore("torch", target, {"x": torch.zeros(3)})


def test_shares_are_for_dcp_alone(tmp_path: Path) -> None:
    import torch.distributed as dist

    from tests.checkpoints import shares, whole

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        state = shares(whole(), 1)
    finally:
        dist.destroy_process_group()
    for writer in FILE_WRITERS:
        with pytest.raises(CheckpointError, match="DTensor"):
            save(writer, claimed(tmp_path / writer), 1, state)


def test_memory_of_stream_does_not_grow_with_the_state(tmp_path: Path) -> None:
    """Resident memory above the state's, at its highest."""
    root = claimed(tmp_path / "c")
    state = {str(number): torch.ones(20 << 20, dtype=torch.uint8) for number in range(8)}
    into = blank(state)

    def work() -> bool:
        restore("stream", save("stream", root, 1, state), into)
        return same(into, state)

    ended = in_child(work)
    assert ended.value is True
    assert ended.extra_bytes < 100 << 20

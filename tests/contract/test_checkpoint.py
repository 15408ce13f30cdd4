"""Every checkpoint writer on every kind of storage: what is restored is what was saved, bit for
bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from iobench.base.errors import CheckpointError, StorageError, UnknownNameError, UsageError
from iobench.checkpoint import WRITERS as REGISTRY
from iobench.checkpoint import make_writer
from iobench.checkpoint.base import Job
from iobench.checkpoint.catalog import CheckpointRoot
from iobench.checkpoint.saving import FileWriter
from iobench.checkpoint.torch_save import TorchSave
from iobench.testing.writers import WriterContract
from tests.checkpoints import (
    EACH_WRITER,
    WRITERS,
    Ranks,
    blank,
    make_state,
    rank_restores_shares,
    rank_saves_shares,
    restore,
    same,
    save,
    two_ranks,
)
from tests.servers.nfs import nfs_server
from tests.servers.s3 import S3Server, rclone_s3, s3_environment, swift_s3

__all__ = ["nfs_server", "rclone_s3", "s3_environment", "swift_s3"]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with two_ranks(tmp_path_factory.mktemp("ranks")) as pair:
        yield pair


@pytest.mark.parametrize("left_out", ["write", "read"])
def test_a_writer_of_files_must_say_how_they_are_written_and_read(left_out: str) -> None:
    parts = {"name": "half", "suffix": ".half", "write": TorchSave.write, "read": TorchSave.read}
    kind = type(
        "Half", (FileWriter,), {name: part for name, part in parts.items() if name != left_out}
    )
    with pytest.raises(TypeError, match=left_out):
        kind(Job())


def test_the_tests_know_every_writer() -> None:
    assert set(WRITERS) == set(REGISTRY.entries())


class TestWriters(WriterContract):
    @pytest.fixture(params=EACH_WRITER)
    def writer(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def place(self, request: pytest.FixtureRequest, writer: str, tmp_path: Path) -> str:
        """One of each kind of file on S3; the other tests have all writers on a disk."""
        if writer not in ("torch", "dcp-async", "stream"):
            return str(tmp_path / "checkpoints")
        request.getfixturevalue("s3_environment")
        return str(request.getfixturevalue("rclone_s3").url())


def embedding_of(state: dict[str, Any]) -> dict[str, Any]:
    """A part of the state, in the same memory."""
    return {"model": {"embedding": state["model"]["embedding"]}, "optimizer": {}, "step": 0}


@pytest.mark.parametrize("writer", ["torch", "safetensors-async", "dcp-async", "stream-async"])
def test_what_changed_is_restored_over_the_whole_state(tmp_path: Path, writer: str) -> None:
    """One tensor changes, and is saved alone, twice; an asynchronous writer keeps its memory."""
    root, state = CheckpointRoot.open(str(tmp_path / "c")), make_state()
    root.claim()
    made, base = make_writer(writer), None
    try:
        for step in (1, 2, 3):
            state["model"]["embedding"].fill_(step)
            part = state if base is None else embedding_of(state)
            part["step"] = step
            saved = made.save(part, root.step(step)).wait()
            root.step(step).publish(saved, rank=0)
            manifest = root.step(step).commit(writer=writer, world=1, base=base)
            base = base or manifest.as_base()
    finally:
        made.close()
    changed = state["model"]["embedding"].nbytes
    for step in (2, 3):
        names = root.step(step).manifest().files()
        stored = sum(root.storage.size(root.step(step).key(name)) for name in names)
        assert changed <= stored < changed + 50_000  # headers, and the metadata of dcp
    again = blank(state)
    for target, into in zip(root.step(3).sources(), (again, embedding_of(again)), strict=True):
        assert restore(writer, target, into).verified == "tensors"
        again["step"] = into["step"]
    state["step"] = 3
    assert same(again, state)


@pytest.mark.parametrize("writer", ["torch-async", "safetensors", "dcp", "dcp-async", "stream"])
def test_two_ranks(tmp_path: Path, writer: str, ranks: Ranks) -> None:
    place = str(tmp_path / "c")
    root = CheckpointRoot.open(place)
    root.claim()
    files = ranks.run("rank_saves", writer, place, 3)
    assert files[0].keys().isdisjoint(files[1])
    assert root.latest() is None
    assert root.partial() == [root.step(3)]
    root.step(3).commit(writer=writer, world=2)
    assert root.latest() == root.step(3)
    assert root.partial() == []
    assert set(root.step(3).data_keys(1)) == {root.step(3).key(name) for name in files[1]}
    assert ranks.run("rank_restores", writer, place, 3) == [True, True]


@pytest.mark.parametrize("writer", ["dcp", "dcp-async"])
def test_shares_go_to_another_number_of_ranks(tmp_path: Path, writer: str, ranks: Ranks) -> None:
    from tests.checkpoints import whole

    root = CheckpointRoot.open(str(tmp_path / "c"))
    root.claim()
    assert ranks.run("rank_saves_shares", writer, root.url, 4) == [True, True]
    root.step(4).commit(writer=writer, world=2)
    assert ranks.run("rank_restores_shares", writer, root.url, 4) == ["files", "files"]
    # One rank, into plain whole tensors.
    state = {
        "model": {name: torch.zeros_like(tensor) for name, tensor in whole().items()},
        "step": 0,
    }
    assert restore("dcp", root.step(4), state).verified == "files"
    assert same(state, {"model": whole(), "step": 9})


def test_shares_of_one_rank_go_to_two_and_back(tmp_path: Path, ranks: Ranks) -> None:
    """Resharded in both directions, into shares; each rank has checked its part of the files."""
    alone = Job(rendezvous=f"file://{tmp_path}/meet")
    root = CheckpointRoot.open(str(tmp_path / "c"))
    root.claim()
    assert rank_saves_shares(alone, "dcp", root.url, 1) is True
    root.step(1).commit(writer="dcp", world=1)
    assert ranks.run("rank_restores_shares", "dcp", root.url, 1) == ["files", "files"]
    assert ranks.run("rank_saves_shares", "dcp", root.url, 2) == [True, True]
    root.step(2).commit(writer="dcp", world=2)
    assert rank_restores_shares(alone, "dcp", root.url, 2) == "files"


def test_what_one_rank_has_to_itself_goes_to_no_other_number_of_ranks(
    tmp_path: Path, ranks: Ranks
) -> None:
    root, state = CheckpointRoot.open(str(tmp_path / "c")), make_state(large=100)
    root.claim()
    save("dcp", root, 1, state)
    refusals = ranks.run("rank_is_refused", "dcp", root.url, 1)
    ranks.run("rank_saves", "dcp", root.url, 2)
    root.step(2).commit(writer="dcp", world=2)
    with pytest.raises(CheckpointError) as caught:
        restore("dcp", root.step(2), blank(state))
    for refusal, saved, wanted in (
        (refusals[0], 1, 2),
        (refusals[1], 1, 2),
        (str(caught.value), 2, 1),
    ):
        assert f"was saved by {saved} rank" in refusal
        assert f"not {wanted}, and 'model/embedding' belongs to rank 0" in refusal
        assert f"--ranks {saved}" in refusal


@pytest.mark.nightly
def test_stream_sends_parts_that_a_strict_server_takes(
    swift_s3: S3Server, s3_environment: Mapping[str, str]
) -> None:
    root, state = CheckpointRoot.open(swift_s3.url()), make_state(large=4_000_001)
    root.claim()
    target = save("stream", root, 1, state, block_size="5MiB", concurrency=3)
    assert root.storage.size(target.key("rank-0000.tensors")) > 3 * (5 << 20)
    again = blank(state)
    restore("stream", target, again, block_size="1MiB")
    assert same(again, state)


def test_block_and_concurrency_do_not_change_the_file(tmp_path: Path) -> None:
    root, state = CheckpointRoot.open(str(tmp_path / "c")), make_state()
    root.claim()
    files = []
    for step, (block, threads) in enumerate(((4096, 1), (1 << 16, 3), ("8MiB", 4))):
        path = save("stream", root, step, state, block_size=block, concurrency=threads).path(
            "rank-0000.tensors"
        )
        files.append(path.read_bytes())
        again = blank(state)
        restore("stream", root.step(step), again, block_size=block, concurrency=threads)
        assert same(again, state)
    assert files[0] == files[1] == files[2]


def test_tensors_that_are_whole_pages_are_written_from_their_own_memory(tmp_path: Path) -> None:
    from iobench.checkpoint.container import lay_out
    from iobench.checkpoint.stream import gather

    state = make_state(large=4_000_001)
    layout, bounce = lay_out(state), torch.zeros(1 << 20, dtype=torch.uint8).numpy()
    blocks = [
        gather(layout, offset, 1 << 20, 4096, bounce) for offset in range(0, layout.size, 1 << 20)
    ]
    import numpy as np

    own = [np.frombuffer(block, np.uint8).ctypes.data != bounce.ctypes.data for block in blocks]
    assert (
        sum(own) >= len(own) - 5
    )  # header and small tensors, and where one large one ends and the next begins


def test_other_libraries_read_the_files(tmp_path: Path) -> None:
    root, state = CheckpointRoot.open(str(tmp_path / "c")), make_state(large=5000)
    root.claim()
    path = save("torch", root, 0, state).path("rank-0000.pt")
    assert path is not None
    assert same(torch.load(path, weights_only=True), state)
    path = save("safetensors", root, 1, state).path("rank-0000.safetensors")
    assert path is not None
    found = load_file(path)
    for name in ("turned", "embedding"):
        assert torch.equal(found[f"model/{name}"], state["model"][name])


def test_a_process_can_not_share_a_wrapper(tmp_path: Path) -> None:
    root = CheckpointRoot.open(f"throttled+{tmp_path}/c?write_bandwidth=1GB")
    root.claim()
    with pytest.raises(UsageError, match="dcp-async-process can't use throttled"):
        save("dcp-async-process", root, 1, make_state(large=10))


def test_the_process_tells_of_failures_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root, state = CheckpointRoot.open(str(tmp_path / "c")), make_state(large=10)
    root.claim()
    made = make_writer("dcp-async-process")
    try:
        made.save(state, root.step(1)).wait()
        assert capfd.readouterr().err == ""
        folder = root.step(2).path()
        folder.mkdir()
        (folder / "__0_0.distcp").symlink_to("nowhere/at/all")
        with pytest.raises(StorageError, match="cannot write"):
            made.save(state, root.step(2)).wait()
    finally:
        made.close()
    told = capfd.readouterr().err
    assert "ERROR - Checkpoint save failed" in told
    assert "INFO" not in told


def test_keep_and_remove(rclone_s3: S3Server, s3_environment: Mapping[str, str]) -> None:
    root, state = CheckpointRoot.open(rclone_s3.url()), {"x": torch.ones(100)}
    root.claim()
    for step in (10, 200, 30):
        save("stream", root, step, state)
    assert [target.number for target in root.complete()] == [10, 30, 200]
    assert root.keep(2) == [10]
    assert root.latest() == root.step(200)
    root.remove(root.step(200))
    assert root.latest() == root.step(30)
    assert {entry.key.split("/")[0] for entry in root.storage.list()} == {
        ".iobench-checkpoints",
        "step-00000030",
    }


def test_options_and_names() -> None:
    with pytest.raises(UnknownNameError, match="did you mean stream"):
        make_writer("steam")
    with pytest.raises(UsageError, match="multiple of 4096"):
        make_writer("stream", options={"block_size": 1000})
    with pytest.raises(UsageError, match="256 MiB"):
        make_writer("stream", options={"block_size": "64MiB", "concurrency": 8})
    with pytest.raises(UsageError, match="no option 'blocksize'"):
        make_writer("stream", options={"blocksize": 4096})

"""The contract of checkpoint writers, with states to save and to restore."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from ..base.errors import IobenchError
from ..checkpoint import make_writer
from ..checkpoint.base import Job, Restored
from ..checkpoint.catalog import CheckpointRoot, CheckpointTarget
from ..checkpoint.leaves import leaves
from ..checkpoint.manifest import BaseCheckpoint


def make_state(seed: int = 0, *, large: int = 700_001) -> dict[str, Any]:
    """Return a state with every kind of leaf and with uneven sizes: about ``large`` x 5 bytes."""
    torch.manual_seed(seed)
    return {
        "model": {
            "embedding": torch.randn(large).to(torch.bfloat16),
            "layers.0": {
                "weight": torch.randn(257, 511),
                "bias": torch.randn(511),
                "half": torch.randn(33).half(),
            },
            "scale": torch.tensor(3.5 + seed),
            "mask": torch.rand(1001) > 0.5,
            "nothing": torch.empty(0, 4),
            "turned": torch.randn(64, 48).t(),
        },
        "optimizer": {
            "step": torch.arange(5) + seed,
            "exp_avg": torch.randn(large // 2),
            "tiny": torch.zeros(1, dtype=torch.uint8),
        },
        "step": 7 + seed,
        "rate": 1e-3 / (seed + 3),
        "worst": math.inf,
        "name": f"résumé {seed}",
        "done": False,
    }


def blank(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same shapes and types with other contents, to restore into."""
    empty: dict[str, Any] = {}
    for name, leaf in state.items():
        if isinstance(leaf, dict):
            empty[name] = blank(leaf)
        elif isinstance(leaf, torch.Tensor):
            # Of the same strides: what was not contiguous is not, here either.
            empty[name] = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype).fill_(1)
        else:
            empty[name] = type(leaf)()
    return empty


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two states are the same, bit for bit."""
    left, right = leaves(one), leaves(other)
    if list(left) != list(right):
        return False
    for name, leaf in left.items():
        found = right[name]
        if not isinstance(leaf, torch.Tensor):
            if type(leaf) is not type(found) or leaf != found:
                return False
        elif (
            leaf.dtype != found.dtype or leaf.shape != found.shape or _bytes(leaf) != _bytes(found)
        ):
            return False
    return True


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def save(
    writer: str,
    root: CheckpointRoot,
    step: int,
    state: dict[str, Any],
    *,
    fsync: bool = True,
    base: BaseCheckpoint | None = None,
    **options: Any,
) -> CheckpointTarget:
    """Save the state of a job of one rank, and complete the checkpoint.

    ``base``: the state is what changed since that one.
    """
    made, target = make_writer(writer, options=options), root.step(step)
    try:
        target.publish(made.save(state, target, fsync=fsync).wait(), rank=0)
    finally:
        made.close()
    target.commit(writer=writer, world=1, base=base)
    return target


def restore(
    writer: str,
    target: CheckpointTarget,
    state: dict[str, Any],
    job: Job | None = None,
    **options: Any,
) -> Restored:
    """Restore the state of one rank into ``state``."""
    made = make_writer(writer, job, options)
    try:
        return made.restore(state, target)
    finally:
        made.close()


class WriterContract:
    """What holds for every checkpoint writer. A subclass has the fixture ``writer``."""

    @pytest.fixture
    def writer(self) -> str:
        """Return the name under which the writer is registered."""
        raise NotImplementedError("a subclass of WriterContract needs the fixture 'writer'")

    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        """Return the directory or URL where checkpoints are written."""
        return str(tmp_path / "checkpoints")

    def test_what_is_restored_is_what_was_saved(self, writer: str, place: str) -> None:
        root, state = CheckpointRoot.open(place), make_state()
        root.claim()
        tensor_bytes = sum(
            leaf.nbytes for leaf in leaves(state).values() if isinstance(leaf, torch.Tensor)
        )
        made = make_writer(writer)
        try:
            for step in (1, 2):  # an asynchronous writer keeps its memory and its process
                target = root.step(step)
                pending = made.save(state, target)
                saved = pending.wait()
                assert pending.done()
                assert saved.durable_s is not None
                assert 0 <= saved.backpressure_s <= saved.blocked_s <= saved.durable_s
                assert 0 < saved.accepted_s <= saved.durable_s
                assert made.asynchronous == (saved.staged_s is not None)
                target.publish(saved, rank=0)
                assert root.latest() == (root.step(1) if step == 2 else None)
                manifest = target.commit(writer=writer, world=1, facts={"model": "test"})
                assert root.latest() == target
                sizes = [root.storage.size(target.key(name)) for name in saved.files]
                assert manifest.bytes == saved.bytes == sum(sizes)
                assert saved.bytes > tensor_bytes
        finally:
            made.close()
        again = blank(state)
        assert not same(again, state)
        restored = restore(writer, root.step(2), again)
        assert same(again, state)
        assert restored.verified == "tensors"
        assert restored.bytes >= tensor_bytes
        assert sorted(target.data_keys()) == sorted(target.key(name) for name in saved.files)
        assert target.manifest() == manifest
        assert manifest.facts == {"model": "test"}
        root.clean()
        assert list(root.storage.list()) == []

    def test_without_fsync_nothing_is_called_durable(self, writer: str, tmp_path: Path) -> None:
        root, state = CheckpointRoot.open(str(tmp_path / "c")), make_state(large=1000)
        root.claim()
        made = make_writer(writer)
        try:
            saved = made.save(state, root.step(1), fsync=False).wait()
        finally:
            made.close()
        assert saved.durable_s is None
        assert saved.accepted_s > 0

    def test_a_damaged_file_is_not_restored(self, writer: str, tmp_path: Path) -> None:
        """One bit in the middle of the largest file, where the tensors are."""
        root, state = CheckpointRoot.open(str(tmp_path / "c")), make_state(large=100_000)
        root.claim()
        target = save(writer, root, 1, state)
        folder = target.path()
        assert folder is not None
        largest = max(folder.iterdir(), key=lambda file: file.stat().st_size)
        data = bytearray(largest.read_bytes())
        data[len(data) // 2] ^= 16
        largest.write_bytes(data)
        with pytest.raises(IobenchError) as caught:
            restore(writer, target, blank(state))
        assert "\n" not in str(caught.value)

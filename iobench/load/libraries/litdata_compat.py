"""The parts of litdata that are not public. Checked with litdata 0.2.76."""

from __future__ import annotations

from typing import Any

from litdata.utilities.env import _DistributedEnv


def set_rank(dataset: Any, *, rank: int, world: int) -> None:
    """Make a StreamingDataset read the part of one rank; it would ask torch.distributed for it."""
    dataset.distributed_env = _DistributedEnv(world_size=world, global_rank=rank, num_nodes=1)

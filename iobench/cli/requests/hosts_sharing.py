"""Flags of a checkpoint's plan and study: how many hosts share the storage, and what it can do."""

from __future__ import annotations

from dataclasses import dataclass

from .flags import BYTES_PER_S, COUNT, SHARE, FlagGroup, VerbFlag, VerbRequest, flag

CHECKPOINT = FlagGroup("of a model's checkpoint")
MAX_HOSTS = 10**6
"""As ``record.checkpoint``, which a help does not import."""

STALL_BUDGETS = VerbFlag(
    name="--stall-budget",
    kind=SHARE,
    help="largest share of the time that saves may take; repeatable (default: 1% and 5%)",
    several=True,
    group=CHECKPOINT.title,
)


@dataclass(frozen=True, kw_only=True)
class SharedStorage(VerbRequest):
    """The flags of hosts that save to one storage at the same time."""

    hosts_writing: int | None = flag(
        COUNT,
        "hosts that save at the same time, each its part of the model (default: the whole job "
        "is taken to get what one host gets)",
        of=CHECKPOINT,
        more=True,
        least=1,
        most=MAX_HOSTS,
    )
    hosts_restoring: int | None = flag(
        COUNT,
        "hosts that read at the same time after an interruption; replicas read a part again "
        "(default: those that write)",
        of=CHECKPOINT,
        more=True,
        least=1,
        most=MAX_HOSTS,
    )
    storage_write_limit: float | None = flag(
        BYTES_PER_S,
        "what the storage takes from all hosts together, e.g. 40GB/s (default: not known)",
        of=CHECKPOINT,
        more=True,
    )
    storage_read_limit: float | None = flag(
        BYTES_PER_S,
        "what the storage gives all hosts together, e.g. 80GB/s (default: not known)",
        of=CHECKPOINT,
        more=True,
    )

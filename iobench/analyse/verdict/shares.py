"""Where the time of a run went, as shares of its wall time without the creation of processes.

They come from the run's own events (``Repetition.ranks``). Records of older versions have only the
time of saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ...schema.training import Repetition
from ...schema.verdict import RankTime


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """Shares of the time, 0 to 1, median over repetitions; None: not measured."""

    saves: float | None = None
    fill: float | None = None
    sync: float | None = None
    fetch: float | None = None
    prep: float | None = None
    wait: float | None = None  # for batches in all: fetch, prep, and what can't be divided


_PARTS = ("saves", "fill", "sync", "fetch", "prep", "wait")


def shares_of(repetitions: Sequence[Repetition]) -> Shares:
    """The shares of the complete repetitions; of each, the mean over its ranks."""
    found = [_of_ranks(each) for each in repetitions if each.complete]
    shares: dict[str, float | None] = {}
    for part in _PARTS:
        known = [share for each in found if (share := each.get(part)) is not None]
        shares[part] = min(1.0, max(0.0, median(known))) if known else None
    return Shares(**shares)


def _of_ranks(repetition: Repetition) -> dict[str, float | None]:
    ranks = [rank for rank in repetition.ranks if rank.wall_s > rank.startup_s]
    if not ranks:
        wall, saved = repetition.wall_s, repetition.checkpoint_s
        return {"saves": (saved or 0.0) / wall if wall else None}
    return {part: _mean([_part(rank, part) for rank in ranks]) for part in _PARTS}


def _part(rank: RankTime, part: str) -> float | None:
    """The share of one rank's time that one part took."""
    seconds: float | None
    if part == "wait":
        seconds = (rank.fetch_s or 0.0) + (rank.prep_s or 0.0) + rank.wait_s
    else:
        seconds = getattr(rank, f"{part}_s")
    return None if seconds is None else seconds / (rank.wall_s - rank.startup_s)


def _mean(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return fmean(known) if len(known) == len(shares) else None

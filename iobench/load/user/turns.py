"""What a rank waits for while its DataLoader's batches come in the order of their numbers.

torch gives batch N to worker N modulo the number of workers, and delivers it only after all batches
before it. So a batch may be ready and held back, because an earlier one is still being made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.utils.data import DataLoader

from ..torch_compat import is_map_style
from . import worker


def why_no_turns(made: Iterable[Any], *, workers: int, unseen: str) -> str:
    """Why it is not known which worker makes which batch; empty if it is.

    ``unseen``: why the workers of the loader are not seen; empty if they are.
    """
    if not workers:
        return "the loader has no worker processes"
    if unseen:
        return unseen
    if not isinstance(made, DataLoader):
        return "the loader has a DataLoader inside, and may regroup its batches"
    if not made.in_order:
        return "the loader delivers its batches in any order"
    return "" if is_map_style(made) else "the loader's dataset is an iterable"


class Turns:
    """The waits of one iteration over a map-style DataLoader with workers.

    Make it before the iteration begins. Times are in nanoseconds of the monotonic clock.
    """

    def __init__(self, board: worker.Board) -> None:
        self.rows, self.workers = board.rows(), board.workers
        self.base = [counts[worker.FETCHES] for counts, _ in self.rows]
        self.number = 0  # of the next batch

    def arrived(self, asked_ns: int, arrived_ns: int) -> tuple[int, int]:
        """Of the wait for the next batch: (while a later one was ready, after it was made)."""
        number = self.number
        self.number += 1
        made = self._made(number)
        made_ns = min(arrived_ns, made if made is not None else arrived_ns)
        handed_over = arrived_ns - max(asked_ns, made_ns)
        if made_ns <= asked_ns or self.workers < 2:
            return 0, handed_over
        later = [self._made(number + ahead) for ahead in range(1, self.workers)]
        ready = [each for each in later if each is not None]
        held_back = made_ns - max(asked_ns, min(ready)) if ready else 0
        return max(0, held_back), handed_over

    def _made(self, number: int) -> int | None:
        """When a batch was made; None if it is not there yet."""
        place, turn = number % self.workers, number // self.workers
        count = self.base[place] + turn
        counts, done = self.rows[place]
        return int(done[count % worker.RING]) if counts[worker.FETCHES] > count else None

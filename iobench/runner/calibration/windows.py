"""When the ceilings are measured: in a first window before the repetitions, and between them.

A ceiling that is measured once, before everything, says nothing about what changes during a run.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...analyse.figures.windows import pooled
from ...schema.training import Ceiling, Epoch
from ..turns import spread
from .bench import Bench
from .ceilings import ENTRIES, Entry

MAX_LATER = 4
"""Windows between the repetitions."""

MIN_LATER_S = 0.5
"""A shorter window says little."""

MAX_SLOW_S = 2.0
"""A window that took longer than this, and than the whole time of a ceiling, is not repeated.

Each needs a few rounds of all workers, however slow they are.
"""


@dataclass(frozen=True, kw_only=True)
class Windows:
    """A first window of ``first_s`` seconds, and one of ``later_s`` after these repetitions."""

    first_s: float
    later_s: float = 0.0
    after: tuple[int, ...] = ()


def plan_windows(seconds: float, repetitions: int) -> Windows:
    """Divide the time of a ceiling: one half before the repetitions, the other between them."""
    count = min(MAX_LATER, repetitions - 1, int(seconds / 2 / MIN_LATER_S))
    if count < 1:
        return Windows(first_s=seconds)
    return Windows(
        first_s=seconds / 2, later_s=seconds / 2 / count, after=spread(count, repetitions - 1)
    )


def again(bench: Bench) -> list[Entry]:
    """The ceilings that another window can be measured of."""
    applied = [entry for entry in ENTRIES if entry.again and entry.applies(bench.plan)]
    return [entry for entry in applied if _worth(bench, entry.name)]


def measure_again(bench: Bench, entry: Entry, seconds: float) -> None:
    """Measure another window of a ceiling, and add it to those before."""
    before = bench.ceilings[entry.name]
    bench.window_s, bench.number = seconds, len(before.details.windows)
    bench.ceilings[entry.name] = _joined(before, entry.measure(bench))


def _worth(bench: Bench, name: str) -> bool:
    windows = bench.ceilings.get(name, Ceiling()).details.windows
    return bool(windows) and windows[-1].seconds <= max(MAX_SLOW_S, bench.seconds)


def _joined(before: Ceiling, more: Ceiling) -> Ceiling:
    """The ceiling with one more window.

    What says how cold it was is that of the window of which a cache served most.
    """
    windows = [*before.details.windows, *more.details.windows]
    details = before.details.model_copy(update={"windows": windows})
    worst = min((before, more), key=_fetched_share)
    update = {"details": details, "cold": worst.cold, "how": worst.how}
    return pooled(before.model_copy(update=update))


def _fetched_share(ceiling: Ceiling) -> float:
    """What the storage delivered of the bytes, unknown first; no limit where it is not asked."""
    cold: Epoch | None = ceiling.cold
    if cold is None:
        return float("inf")
    if cold.bytes_fetched is None:
        return -1.0
    return cold.bytes_fetched / max(1, cold.sample_bytes or 0)

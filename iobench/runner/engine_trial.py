"""``reader.engine: auto``: which way to issue reads is faster here, tried before a run.

Both engines read batches of the dataset in turns, in a process of their own. Nothing is decoded.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ..base.errors import WorkerError
from ..base.processes import in_own_process
from ..load import make_reader
from ..load.order import BatchPlan, Indices, epoch_order, rank_share
from ..storage.local.storage import LocalStorage
from ..storage.local.uring import refused
from ..storage.s3.storage import S3Storage
from .plan import Plan
from .trials import rounds, seed_of, take_turns

_TURNS = 6
"""Of each engine. An even number: each is as often the first as the second."""

TURN_S = 0.1

ALIKE = 0.05
"""Rates that differ by less than this share are alike; then the engine with less CPU is taken."""


@dataclass
class _Seen:
    """What an engine did in its turns: samples/s, and CPU seconds of a sample."""

    rates: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def with_engine(plan: Plan) -> Plan:
    """The plan of a workload that says ``auto``, with the engine that is faster here.

    ``plan.engine_choice`` says what was found. Raises IobenchError if the data can't be read.
    """
    reading = plan.workload.reader
    engine, why, other = "threads", "", "io_uring"
    if plan.subject.reads_itself:
        why = "the loader is not iobench's own"
    elif isinstance(plan.storage, S3Storage) and not reading.mmap:
        why, other = plan.storage.not_wired(), "event_loop"
    elif reading.mmap or not isinstance(plan.storage, LocalStorage):
        why = "io_uring reads local files that are not mapped, and the event loop reads from S3"
    else:
        why = refused() or ""
    if not why:
        engine, why = _compared(plan, other)
    changed = reading.model_copy(update={"engine": engine})
    workload = plan.workload.model_copy(update={"reader": changed})
    return replace(plan, workload=workload, engine_choice=f"auto took {engine}: {why}")


def _compared(plan: Plan, other: str) -> tuple[str, str]:
    """The engine that was faster, and what both did."""
    found = in_own_process(
        lambda: _tried(plan, other),
        failed=lambda code: WorkerError(f"the trial of reader.engine has ended with {code}"),
    )
    if not all(seen.rates for seen in found.values()):
        return "threads", "the dataset has too few batches to try both on data not read before"
    rate = {name: statistics.median(seen.rates) for name, seen in found.items()}
    cpu_s = {name: statistics.median(seen.cpu_s) for name, seen in found.items()}
    alike = abs(rate[other] / rate["threads"] - 1) <= ALIKE
    engine = min(cpu_s, key=cpu_s.__getitem__) if alike else max(rate, key=rate.__getitem__)
    told = ", ".join(
        f"{name} read {rate[name]:,.0f} samples/s with {1e6 * cpu_s[name]:,.1f} us of CPU each"
        for name in rate
    )
    return engine, told


def _tried(plan: Plan, other: str) -> dict[str, _Seen]:
    """Read in turns for about ``TURN_S`` each, until data that was not read before is over."""
    seen = {"threads": _Seen(), other: _Seen()}
    batches = _batches(plan)
    readers = {
        name: make_reader(
            plan.manifest,
            plan.storage,
            plan.workload.reader.model_copy(update={"engine": name}),
            bytes_only=True,
        )
        for name in seen
    }
    for reader in readers.values():  # starts threads, and touches memory
        if (first := next(batches, None)) is not None:
            reader.read(first, None)
    over = False

    def measure(name: str, turn: int) -> None:
        nonlocal over
        began, cpu, samples = time.monotonic(), _cpu_s(), 0
        while (took := time.monotonic() - began) < TURN_S:
            if (batch := next(batches, None)) is None:
                over = True
                return
            readers[name].read(batch, None)
            samples += len(batch)
        seen[name].rates.append(samples / took)
        seen[name].cpu_s.append((_cpu_s() - cpu) / samples)

    take_turns(list(seen), measure, rounds(_TURNS), is_active=lambda name: not over)
    return seen


def _batches(plan: Plan) -> Iterator[Indices]:
    """Batches as those of a first rank, each sample once; over and over if no cache can help."""
    workload, shards = plan.workload, plan.manifest.shards
    again = plan.uncached or workload.cache == "warm"
    epoch = 0
    while epoch == 0 or again:
        order = epoch_order(
            shards["first"],
            shards["samples"],
            sequential=plan.sequential,
            shuffle=workload.reader.shuffle,
            seed=seed_of(plan.seed, "engine"),
            epoch=epoch,
        )
        share = rank_share(order, rank=0, world=1, batch_size=workload.batch_size, tail="keep")
        batches = BatchPlan(share, batch_size=workload.batch_size)
        yield from (batches.batch(number) for number in range(len(batches)))
        epoch += 1


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

"""``reader.engine: auto``: which way to issue reads is faster here, tried before a run.

Both engines read batches of the dataset in turns, in a process of their own. Nothing is decoded.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..base.errors import WorkerError
from ..base.processes import in_own_process
from ..load.choose import make_reader
from ..load.order import BatchPlan, Indices, epoch_order, rank_share
from ..record.manifest import Manifest
from ..settings.workload import Workload
from ..storage.base import Storage
from ..storage.local.storage import LocalStorage
from ..storage.local.uring import refused
from ..storage.s3.storage import S3Storage
from .trials import rounds, seed_of, take_turns

_ROUNDS = 6
"""Of each engine. An even number: each is as often the first as the second."""

TRIAL_S = 0.1

ALIKE = 0.05
"""Rates that differ by less than this share are alike; then the engine with less CPU is taken."""


@dataclass
class _Seen:
    """What an engine did in its trials: samples/s, and CPU seconds of a sample."""

    rates: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class EngineTrial:
    """What is read to find the engine; each field as in ``plan.Plan``."""

    workload: Workload
    manifest: Manifest
    storage: Storage
    sequential: bool
    uncached: bool
    seed: int

    def choose(self) -> tuple[str, str]:
        """The engine that is faster here, and why. Raises IobenchError if data can't be read."""
        why, other = "", "io_uring"
        mapped, storage = self.workload.reader.mmap, self.storage
        if self.workload.loader.subject.reads_itself:
            why = "the loader is not iobench's own"
        elif isinstance(storage, S3Storage) and not mapped:
            why, other = storage.not_wired(), "event_loop"
        elif mapped or not isinstance(storage, LocalStorage):
            why = "io_uring reads local files that are not mapped, and the event loop reads from S3"
        else:
            why = refused() or ""
        return ("threads", why) if why else self._faster(other)

    def _faster(self, other: str) -> tuple[str, str]:
        """The engine that was faster, and what both did."""
        found = in_own_process(
            lambda: self._tried(other),
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

    def _tried(self, other: str) -> dict[str, _Seen]:
        """Read in turns for about ``TRIAL_S`` each, until data that was not read before is over."""
        seen = {"threads": _Seen(), other: _Seen()}
        batches = self._batches()
        readers = {
            name: make_reader(
                self.manifest,
                self.storage,
                self.workload.reader.model_copy(update={"engine": name}),
                bytes_only=True,
            )
            for name in seen
        }
        for reader in readers.values():  # starts threads, and touches memory
            if (first := next(batches, None)) is not None:
                reader.read(first, None)
        over = False

        def measure(name: str, number: int) -> None:
            nonlocal over
            began, cpu, samples, took = time.monotonic(), _cpu_s(), 0, 0.0
            while not samples or took < TRIAL_S:
                if (batch := next(batches, None)) is None:
                    over = True
                    return
                readers[name].read(batch, None)
                samples, took = samples + len(batch), time.monotonic() - began
            seen[name].rates.append(samples / took)
            seen[name].cpu_s.append((_cpu_s() - cpu) / samples)

        take_turns(list(seen), measure, rounds(_ROUNDS), is_active=lambda name: not over)
        return seen

    def _batches(self) -> Iterator[Indices]:
        """Batches as those of a first rank, each once; over and over if no cache can help."""
        workload, shards = self.workload, self.manifest.shards
        again = self.uncached or workload.cache == "warm"
        epoch = 0
        while epoch == 0 or again:
            order = epoch_order(
                shards["first"],
                shards["samples"],
                sequential=self.sequential,
                shuffle=workload.reader.shuffle,
                seed=seed_of(self.seed, "engine"),
                epoch=epoch,
            )
            share = rank_share(order, rank=0, world=1, batch_size=workload.batch_size, tail="keep")
            batches = BatchPlan(share, batch_size=workload.batch_size)
            yield from (batches.batch(number) for number in range(len(batches)))
            epoch += 1


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

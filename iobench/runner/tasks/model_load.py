"""A rank that loads a model's weights, at the same instant as all others.

What the parent sends, and what comes back::

    LoadNow      PartLoaded: the tensors are in memory
    CheckLoaded  Done: they hold what they should, and are dropped
    Stop         Ended
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from ...base.errors import UsageError
from ...base.units import counted
from ...host.fetched import fetched_by_family
from ...host.resources import PeakMemory
from ...record.model_load import LoadStage
from ...record.typed import Count
from ...serve.check import Checksums, check_loaded, expected_checksums
from ...serve.loaders import make_model_loader
from ...serve.loaders.base import Exchange, Loaded, ModelLoader
from ...serve.loaders.direct import DirectLoader
from ...serve.weights import RankShare, Sharing, Weights, require_memory
from ...storage.base import Storage, retried
from ..messages import CheckLoaded, Done, Ended, Link, LoadNow, PartLoaded
from ..model_load_plan import LoadPlan, memory_needed, options_of
from .checkpoint import wait_until


@dataclass(frozen=True, kw_only=True)
class LoadPart:
    """What one rank loads, and by what. ``checksums``: of what it must have then."""

    storage: Storage
    weights: Weights
    share: RankShare
    loader: str
    checksums: Checksums
    options: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    exchange: Exchange | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadOrder:
    """The replicas of each host, and their loader.

    ``one_read``: those of a host read a part each, and exchange it.
    """

    loader: str
    replicas: Count
    one_read: bool = False


class LoadParts:
    """What each rank of this host loads, by the plan of this host."""

    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        self._expected: dict[RankShare, Checksums] = {}

    def at(self, plan: LoadPlan) -> LoadParts:
        """The same from another place, which holds the same files."""
        there = copy(self)
        there.plan = plan
        return there

    def prepare(self) -> None:
        """Learn what the tensors must hold, before anything is measured."""
        ranks = range(self.plan.spec.tensor_parallel)
        self._expected = {RankShare(): self._checksums(RankShare())}
        if self.plan.spec.share == "sliced":
            shares = [RankShare("sliced", rank, len(ranks)) for rank in ranks]
            self._expected |= {share: self._checksums(share) for share in shares}

    def _checksums(self, share: RankShare) -> Checksums:
        return expected_checksums(self.plan.direct, self.plan.weights, share)

    @contextmanager
    def of(self, order: LoadOrder) -> Iterator[list[LoadPart]]:
        """One part for each rank; those that exchange meet in shared memory of this host.

        Raises UsageError for what the plan does not have, and NoRoomError.
        """
        plan, spec = self.plan, self.plan.spec
        loader, count, one_read = order.loader, order.replicas, order.one_read
        if count > max(spec.replicas) or loader not in (*spec.loaders, DirectLoader.name):
            raise UsageError(f"{counted(count, 'replica')} by {loader} are not in this host's plan")
        needed = memory_needed(spec, plan.weights, loader, count, one_read=one_read)
        require_memory(needed, f"{counted(count, 'replica')} by {loader}")
        world = count * spec.tensor_parallel
        meeting = world if one_read else spec.tensor_parallel  # ranks that exchange
        how: Sharing = "exchange" if one_read else spec.share
        with ExitStack() as held:
            found: list[LoadPart] = []
            exchange: Exchange | None = None
            for rank in range(world):
                if how == "exchange" and rank % meeting == 0:
                    exchange = Exchange(plan.weights, meeting)
                    held.callback(exchange.close)
                share = RankShare(how, rank % meeting, meeting)
                found.append(
                    LoadPart(
                        storage=plan.read_by(loader),
                        weights=plan.weights,
                        share=share,
                        loader=loader,
                        checksums=self._expected[share if how == "sliced" else RankShare()],
                        options=options_of(spec, loader),
                        device=spec.device,
                        exchange=exchange,
                    )
                )
            yield found


class ModelLoad:
    """The task of a trial. ``parts``: what each rank of this host loads."""

    def __init__(self, parts: Sequence[LoadPart]) -> None:
        self._parts = parts

    def run(self, link: Link) -> None:
        part, memory = self._parts[link.local], PeakMemory()
        loader = make_model_loader(part.loader, part.options)
        try:
            loader.prepare(
                part.storage,
                part.weights,
                part.share,
                device=part.device,
                exchange=part.exchange,
            )
            link.send(Done())
            loaded: Loaded | None = None
            while True:
                match link.receive():
                    case LoadNow(at_ns, leave_out):
                        loaded = None  # what it holds is valid until the next load
                        before = retried(part.storage)
                        loaded, found = _load(loader, at_ns, leave_out, memory)
                        again = retried(part.storage).since(before)
                        link.send(replace(found, **again._asdict()))
                    case CheckLoaded():
                        assert loaded is not None
                        check_loaded(loaded, part.checksums, part.storage.url)
                        loaded = None
                        link.send(Done())
                    case _:
                        break
            loaded = None
        finally:
            loader.close()
        link.send(Ended())


def _load(
    loader: ModelLoader, at_ns: int, leave_out: LoadStage | None, memory: PeakMemory
) -> tuple[Loaded, PartLoaded]:
    before = fetched_by_family()
    wait_until(at_ns)
    loaded = loader.load(leave_out=leave_out)
    after = fetched_by_family()
    late_s = max(0.0, loaded.started_s - at_ns / 1e9)
    return loaded, PartLoaded(
        ready_s=late_s + loaded.load_s,
        late_s=late_s,
        bytes_read=loaded.bytes_read,
        fetched=None if before is None or after is None else after - before,
        cpu_s=loaded.cpu_s,
        peak_memory_bytes=memory.extra_bytes(),
        class_s={name: times.seconds for name, times in loaded.assembly.items()},
    )

"""A rank that loads a model's weights, at the same instant as all others.

What the parent sends, and what comes back::

    LoadNow      PartLoaded: the tensors are in memory
    CheckLoaded  Done: they hold what they should, and are dropped
    Stop         Ended
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...host.fetched import fetched_by_family
from ...host.resources import PeakMemory
from ...record.model_load import LoadStage
from ...serve.check import Checksums, check_loaded
from ...serve.loaders import make_model_loader
from ...serve.loaders.base import Loaded, ModelLoader
from ...serve.loaders.exchange import Exchange
from ...serve.share import RankShare
from ...serve.weights import Weights
from ...storage.base import Storage
from ..messages import CheckLoaded, Done, Ended, Link, LoadNow, PartLoaded
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


class ModelLoad:
    """The task of a trial. ``part``: what the rank of this number loads."""

    def __init__(self, part: Callable[[int], LoadPart]) -> None:
        self._part = part

    def run(self, link: Link) -> None:
        part, memory = self._part(link.rank), PeakMemory()
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
                        loaded, found = _load(loader, at_ns, leave_out, memory)
                        link.send(found)
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

"""Both read engines behind one interface, so that a test can ask the same of each of them."""

from __future__ import annotations

from iobench.load.engines.base import ReadEngine
from iobench.load.engines.threads import ThreadEngine
from iobench.load.engines.uring import UringEngine
from iobench.storage.local.storage import LocalStorage


def open_engine(
    engine: str,
    storage: LocalStorage,
    *,
    concurrency: int = 4,
    block_size: int = 4096,
    once: bool = False,
) -> ReadEngine:
    """An engine of this kind, which a test closes together with its storage."""
    kind = UringEngine if engine == "io_uring" else ThreadEngine
    return kind(storage, concurrency=concurrency, block_size=block_size, once=once)


def end(engine: ReadEngine) -> None:
    """Close an engine as a reader does, and its storage as well."""
    engine.settle()
    engine.close()
    engine.storage.close()

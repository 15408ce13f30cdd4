"""iobench: will this storage starve these accelerators, why, and what would fix it?

The public API; everything is imported when it is first used, so ``import iobench`` costs nothing.

>>> loader = iobench.make_loader("/mnt/fast/resnet50", batch_size=400)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "Batch": "iobench.load",
    "DatasetSpec": "iobench.spec.dataset",
    "IobenchError": "iobench.errors",
    "Manifest": "iobench.spec.manifest",
    "RunDocument": "iobench.spec.result",
    "Workload": "iobench.spec.workload",
    "generate": "iobench.generate",
    "load_dataset_spec": "iobench.spec.dataset",
    "load_manifest": "iobench.spec.manifest",
    "load_run": "iobench.spec.result",
    "load_workload": "iobench.spec.workload",
    "make_loader": "iobench.load",
    "make_plan": "iobench.run.plan",
    "open_storage": "iobench.storage",
    "run": "iobench.run.runner",
    "verify": "iobench.verify",
}

__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604

if TYPE_CHECKING:
    from .load import Batch as Batch
    from .load import make_loader as make_loader


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'iobench' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

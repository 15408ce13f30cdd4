"""iobench: will this storage starve these accelerators, why, and what would fix it?

The public API; everything is imported when it is first used, so ``import iobench`` costs nothing.

>>> loader = iobench.make_loader("/mnt/fast/resnet50", batch_size=400)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Batch": "iobench.load:Batch",
    "DatasetSpec": "iobench.spec.dataset:DatasetSpec",
    "IobenchError": "iobench.errors:IobenchError",
    "Manifest": "iobench.spec.manifest:Manifest",
    "RunDocument": "iobench.spec.result:RunDocument",
    "Workload": "iobench.spec.workload:Workload",
    "generate_dataset": "iobench.generate:generate",
    "load_dataset_spec": "iobench.spec.dataset:load_dataset_spec",
    "load_manifest": "iobench.spec.manifest:load_manifest",
    "load_run": "iobench.spec.result:load_run",
    "load_workload": "iobench.spec.workload:load_workload",
    "make_loader": "iobench.load:make_loader",
    "make_plan": "iobench.run.plan:make_plan",
    "open_storage": "iobench.storage:open_storage",
    "run_plan": "iobench.run.runner:run",
    "verify_dataset": "iobench.verify:verify",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'iobench' has no attribute '{name}'")
    import importlib

    module, _, attribute = _PUBLIC[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)

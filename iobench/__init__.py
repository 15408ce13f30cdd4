"""iobench: will this storage starve these accelerators, why, and what would fix it?

The public API. Everything is imported at its first use, so ``import iobench`` is fast.

>>> loader = iobench.make_loader("/mnt/fast/resnet50", batch_size=400)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Batch": "iobench.load:Batch",
    "DatasetSpec": "iobench.schema.dataset:DatasetSpec",
    "IobenchError": "iobench.errors:IobenchError",
    "Manifest": "iobench.schema.manifest:Manifest",
    "RunDocument": "iobench.schema.result:RunDocument",
    "Workload": "iobench.schema.workload:Workload",
    "generate_dataset": "iobench.generator:generate",
    "load_dataset_spec": "iobench.schema.dataset:load_dataset_spec",
    "load_manifest": "iobench.schema.manifest:load_manifest",
    "load_run": "iobench.schema.result:load_run",
    "load_workload": "iobench.schema.workload:load_workload",
    "make_loader": "iobench.load:make_loader",
    "make_plan": "iobench.runner.plan:make_plan",
    "open_storage": "iobench.storage:open_storage",
    "run_plan": "iobench.runner.experiment:run",
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

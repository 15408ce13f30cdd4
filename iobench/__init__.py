"""iobench: will this storage starve these accelerators, why, and what would fix it?

This is the public API; docs/api.md describes it. Every name is imported when it is first used, so
``import iobench`` costs next to nothing.

>>> loader = iobench.make_loader("/mnt/fast/resnet50", batch_size=400)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "1.0.0"

__all__ = [
    "Accelerator",
    "Batch",
    "BatchLoader",
    "BusError",
    "CheckpointError",
    "CheckpointWriter",
    "Codec",
    "CommandResult",
    "Comparison",
    "Content",
    "CorruptCheckpointError",
    "CorruptSampleError",
    "Dataset",
    "DatasetError",
    "DatasetSpec",
    "Examples",
    "Finding",
    "Format",
    "GenerateReport",
    "HostLostError",
    "InternalError",
    "InterruptedRun",
    "InvalidRunError",
    "IobenchError",
    "Labels",
    "LibraryLoader",
    "LoaderSpec",
    "LostRankError",
    "Manifest",
    "MissingObjectError",
    "MissingPlaceError",
    "NoMemoryError",
    "NoRoomError",
    "Observer",
    "Options",
    "Padded",
    "Plan",
    "ReaderSpec",
    "Run",
    "RunRecord",
    "ShortObjectError",
    "Sink",
    "SpecError",
    "Storage",
    "StorageError",
    "Summary",
    "TargetHeldError",
    "TargetLostError",
    "TargetRefusedError",
    "ThresholdError",
    "TrainingLoader",
    "UnknownNameError",
    "UnreadableError",
    "UnwrittenError",
    "UsageError",
    "Verdict",
    "VerifyReport",
    "WorkerError",
    "Workload",
    "__version__",
    "command",
    "compare",
    "generate",
    "generate_dataset",
    "load_dataset_spec",
    "load_manifest",
    "load_run",
    "load_workload",
    "make_loader",
    "make_plan",
    "open_dataset",
    "open_run",
    "open_storage",
    "read_labels",
    "run",
    "run_plan",
    "verify_dataset",
    "watch",
]

if TYPE_CHECKING:
    from .accelerate.base import Accelerator
    from .api import CommandResult, Run, command, compare, generate, open_run, run
    from .ask.compare.comparison import Comparison
    from .base.errors import (
        BusError,
        CheckpointError,
        CorruptCheckpointError,
        CorruptSampleError,
        DatasetError,
        HostLostError,
        InternalError,
        InterruptedRun,
        InvalidRunError,
        IobenchError,
        LostRankError,
        MissingObjectError,
        MissingPlaceError,
        NoMemoryError,
        NoRoomError,
        ShortObjectError,
        SpecError,
        StorageError,
        TargetHeldError,
        TargetLostError,
        TargetRefusedError,
        ThresholdError,
        UnknownNameError,
        UnreadableError,
        UnwrittenError,
        UsageError,
        WorkerError,
    )
    from .checkpoint import CheckpointWriter
    from .data.codecs.base import Codec
    from .data.contents.base import Content
    from .data.dataset import Dataset, load_dataset_spec, load_manifest, open_dataset
    from .data.formats.base import Format
    from .data.generator.engine import GenerateReport
    from .data.generator.engine import generate as generate_dataset
    from .data.verify import VerifyReport
    from .data.verify import verify as verify_dataset
    from .load.build import make_loader, read_labels
    from .load.loader import Batch, BatchLoader
    from .load.third_party import LibraryLoader
    from .load.training.labels import Labels
    from .load.training.loader import Examples, Padded, TrainingLoader
    from .record.manifest import Manifest
    from .record.run import Finding, RunRecord, Summary, load_run
    from .record.verdict import Verdict
    from .runner.experiment import run as run_plan
    from .runner.options import Observer, Options
    from .runner.plan import Plan, make_plan
    from .runner.watching import watch
    from .settings.dataset import DatasetSpec
    from .settings.workload import LoaderSpec, ReaderSpec, Workload, load_workload
    from .storage import open_storage
    from .storage.base import Sink, Storage
else:
    from .base.lazily import lazily

    __getattr__ = lazily(globals())


def __dir__() -> list[str]:
    return sorted(__all__)

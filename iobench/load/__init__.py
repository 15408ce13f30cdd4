"""Loaders: batches of samples from storage as torch tensors.

Names are imported when they are first used, since most of them import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "Batch",
    "BatchLoader",
    "Examples",
    "Labels",
    "LibraryLoader",
    "Padded",
    "TrainingLoader",
    "build_loader",
    "check_library",
    "is_sequential",
    "library_version",
    "make_loader",
    "make_reader",
    "offered",
    "open_library",
    "planned_ahead",
    "read_labels",
    "use_direct",
    "with_map",
]

if TYPE_CHECKING:
    from .build import build_loader, make_loader, offered, planned_ahead, read_labels
    from .choose import is_sequential, make_reader, use_direct, with_map
    from .loader import Batch, BatchLoader
    from .third_party import LibraryLoader, check_library, library_version, open_library
    from .training.labels import Labels
    from .training.loader import Examples, Padded, TrainingLoader
else:
    from ..base.lazily import lazily

    __getattr__ = lazily(globals())

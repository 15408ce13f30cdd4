"""The labels of a dataset's samples: one table by sample number, read before the training begins.

Labels are never read beside the samples, so that they cost nothing while a training runs, and are
the same for every order, worker and rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ...base.errors import UsageError
from ...record.manifest import Manifest
from ...storage.base import Storage
from .sources import Label, column_labels, folder_labels, member_labels

Indices = npt.NDArray[np.int64]

_INTEGER = re.compile(r"[+-]?\d{1,18}")
_MIN, _MAX = -(1 << 63), (1 << 63) - 1

_USUAL = {"files": "folder", "tar": "member:cls", "parquet": "column:label"}
"""By format: where ``auto`` looks for labels."""

_FORMS = {"folder": "files", "member": "tar", "column": "parquet"}
"""By the kind of source: the format that can have it."""

_SOURCES: dict[str, Callable[[Manifest, Storage, str], list[Label]]] = {
    "folder": folder_labels,
    "member": member_labels,
    "column": column_labels,
}


class _Source(NamedTuple):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind


class Labels:
    """The label of each sample, by its number in the dataset.

    ``values``: int64 [samples], or with ``raw`` a list of what the data has. ``classes``: the names
    of the classes 0, 1, ... in sorted order, or None if the data itself has numbers. ``source``:
    where they were found.
    """

    def __init__(
        self,
        values: npt.NDArray[np.int64] | list[Label],
        classes: tuple[str, ...] | None = None,
        source: str = "given",
    ) -> None:
        self.values = values
        self.classes = classes
        self.source = source

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        found = "raw" if isinstance(self.values, list) else f"{self.class_count} classes"
        return f"Labels({len(self)} samples, {found}, from {self.source})"

    @property
    def class_to_index(self) -> dict[str, int]:
        """The number of each class by its name; empty if the data itself has numbers."""
        return {name: number for number, name in enumerate(self.classes or ())}

    @property
    def class_count(self) -> int:
        """How many outputs a classifier needs: the names, or the largest number plus one.

        Raises UsageError for raw labels.
        """
        if isinstance(self.values, list):
            raise UsageError("raw labels have no classes", remedy="read them without raw=True")
        if self.classes is not None:
            return len(self.classes)
        return int(self.values.max()) + 1 if len(self.values) else 0

    def of(self, indices: Indices) -> torch.Tensor | list[Label]:
        """Return the labels of these samples: int64 [samples], or a list of raw labels."""
        if isinstance(self.values, list):
            return [self.values[index] for index in indices.tolist()]
        return torch.from_numpy(self.values[indices])


Given = str | Labels | Sequence[int] | Sequence[str] | npt.NDArray[np.generic] | torch.Tensor
"""What ``make_loader`` takes as labels: a source, or a label for each sample."""


def labels_from(
    manifest: Manifest, storage: Storage, source: str = "auto", *, raw: bool = False
) -> Labels:
    """Read the labels of all samples of a dataset, as ``iobench.read_labels`` describes.

    Raises UsageError for a source that the dataset cannot have, DatasetError for a sample without a
    label, StorageError.
    """
    chosen = _chosen(source, manifest.spec.format)
    found = _SOURCES[chosen.kind](manifest, storage, chosen.name)
    if raw:
        return Labels(found, None, str(chosen))
    if chosen.kind == "member":  # files of text often end with the end of a line
        found = [label.strip() if isinstance(label, str) else label for label in found]
    return _numbered(found, str(chosen), names=chosen.kind == "folder")


def given_labels(values: object, samples: int) -> Labels:
    """Return the labels of a table of the user's: one whole number or name for each sample.

    Raises UsageError.
    """
    if isinstance(values, Labels):
        _check_count(len(values), samples)
        return values
    if isinstance(values, torch.Tensor):
        values = values.cpu().numpy()
    table = np.empty(0)
    if isinstance(values, np.ndarray):
        table = values
    elif isinstance(values, Sequence) and not isinstance(values, str | bytes):
        _check_count(len(values), samples)
        if all(isinstance(name, str) for name in values):
            return _numbered(list(values), "given", names=True)
        with suppress(ValueError, OverflowError):  # lists of different lengths, huge numbers
            table = np.asarray(values)
    if table.ndim != 1 or table.dtype.kind not in "iuU":
        raise UsageError(
            f"labels cannot be a {type(values).__name__} of this kind",
            remedy="pass a source such as 'auto', or one whole number or name for each sample",
        )
    _check_count(len(table), samples)
    if table.dtype.kind == "U":
        return _numbered([str(name) for name in table], "given", names=True)
    return Labels(np.ascontiguousarray(table, np.int64))


def _check_count(count: int, samples: int) -> None:
    if count != samples:
        raise UsageError(
            f"there are {count} labels, but the dataset has {samples} samples",
            remedy="pass one label for each sample, in the order of the dataset",
        )


def _chosen(source: str, form: str) -> _Source:
    if source == "auto":
        source = _USUAL.get(form, "")
    kind, colon, name = source.partition(":")
    if form not in _USUAL:
        raise UsageError(
            f"format '{form}' has no labels beside its samples",
            remedy="pass labels= one whole number for each sample, or return the label from your "
            "transform",
        )
    if kind not in _FORMS or bool(name) != (kind != "folder") or (colon and not name):
        raise UsageError(
            f"'{source}' is not a source of labels",
            remedy="use auto, folder, member:NAME, member:json:KEY or column:NAME",
        )
    if _FORMS[kind] != form:
        raise UsageError(
            f"labels from '{source}' need format {_FORMS[kind]}, but this dataset has format "
            f"'{form}'",
            remedy=f"use labels='{_USUAL[form]}', or pass one whole number for each sample",
        )
    return _Source(kind, name)


def _numbered(found: list[Label], source: str, *, names: bool) -> Labels:
    """Make labels of what was found: numbers as they are, names in sorted order.

    ``names``: they are names, even if all of them are digits.
    """
    if any(isinstance(label, bytes) for label in found):
        raise UsageError(
            f"labels from '{source}' are bytes that are no text",
            remedy="read them with iobench.read_labels(..., raw=True)",
        )
    if not names and all(_is_number(label) for label in found):
        return Labels(np.array([int(label) for label in found], np.int64), None, source)
    classes = tuple(sorted({str(label) for label in found}))
    number = {name: place for place, name in enumerate(classes)}
    return Labels(np.array([number[str(label)] for label in found], np.int64), classes, source)


def _is_number(label: Label) -> bool:
    if isinstance(label, int):
        return _MIN <= label <= _MAX
    return isinstance(label, str) and _INTEGER.fullmatch(label) is not None

"""The labels of a dataset's samples: one table by sample number, read before the training begins.

Labels are never read beside the samples, so that they cost nothing while a training runs, and are
the same for every order, worker and rank. A label is the folder of a file, a member of a tar's
sample, or a value of a Parquet column.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ...base.documents import parse_json
from ...base.errors import DatasetError, UsageError
from ...base.limits import MAX_LABEL_BYTES
from ...data.scan.index import sample_of_members, tar_groups
from ...data.scan.parquet import opened
from ...record.manifest import Manifest
from ...record.packing import DATA
from ...storage.base import Storage
from ...storage.files import ReadWindow

Label = int | str | bytes

_THREADS = 8  # shards at a time: over a network each read is a request

_SMALL = 1 << 16
"""Shards whose samples are smaller, in bytes, are read in large pieces: all headers lie close."""

_FOLDER_REMEDY = "use a directory with a folder for each class, or pass labels for each sample"


def folder_labels(manifest: Manifest, storage: Storage, name: str) -> list[Label]:
    """Return the first folder of each file below the folder that all of them share.

    That is the rule of torchvision's ImageFolder. Raises DatasetError. Nothing is read.
    """
    generated = not manifest.header.origin
    if generated and manifest.spec.labels is None:
        raise DatasetError(
            f"dataset '{manifest.spec.name}' was generated without labels",
            remedy="generate it with --set labels=10",
        )
    above = DATA if generated else manifest.folder()
    begin = len(above) + 1 if above else 0
    found: list[Label] = []
    for key in manifest.keys():  # noqa: SIM118
        folder, slash, _ = key[begin:].partition("/")
        if not slash:
            raise DatasetError(
                f"{key} lies in no folder of a class, so that it has no label",
                remedy=_FOLDER_REMEDY,
            )
        found.append(folder)
    return found


def member_labels(manifest: Manifest, storage: Storage, name: str) -> list[Label]:
    """Return the label in a member of each sample of tar shards, as webdataset finds it.

    ``name``: the member's name behind the first dot, such as ``cls``; or ``json:KEY`` for a value
    in a member ``json``, with dots between the keys of nested objects. The headers of all shards
    are read. Raises DatasetError, StorageError.
    """
    member, _, path = name.partition(":")
    small = manifest.mean_stored_bytes < _SMALL

    def of_shard(shard: int) -> list[Label]:
        key, first, count = _place(manifest, shard)
        window = ReadWindow(storage, MAX_LABEL_BYTES, nbytes=1 << 20 if small else 1 << 14)
        rows = {
            int(offset): row
            for row, offset in enumerate(manifest.samples["offset"][first : first + count].tolist())
        }
        found: dict[int, Label] = {}
        for group in tar_groups(window, key, window.open(key)):
            row = rows.get(sample_of_members(group).offset)
            if row is not None:
                found[row] = _of_group(window, key, first + row, group, member, path)
        if len(found) != count:
            raise _changed(key)
        return [found[row] for row in range(count)]

    return _of_shards(manifest, of_shard)


def column_labels(manifest: Manifest, storage: Storage, name: str) -> list[Label]:
    """Return the value of a column of whole numbers or text in each row of Parquet files.

    Only the footers and this column are read. Raises DatasetError, StorageError.
    """

    def of_shard(shard: int) -> list[Label]:
        key, _, count = _place(manifest, shard)
        window = ReadWindow(storage, 0, nbytes=1 << 16)
        found: list[Label] = []
        try:
            file, _ = opened(window, window.open(key), name)
            for group in range(file.groups):
                begin, end = file.extent(group)
                for value in file.values(group, [(begin, window.apart(begin, end))]):
                    if value is None:
                        raise ValueError(f"row {len(found)} has no value in column '{name}'")
                    found.append(value)
        except ValueError as error:
            raise DatasetError(
                f"{key} has no labels: {error}", remedy="name another column: column:NAME"
            ) from None
        if len(found) != count:
            raise _changed(key)
        return [_text(label) for label in found]

    return _of_shards(manifest, of_shard)


def _of_shards(manifest: Manifest, of_shard: Callable[[int], list[Label]]) -> list[Label]:
    """Return the labels of all shards in the order of the samples; several are read at a time."""
    found: list[Label] = [0] * manifest.sample_count
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="iobench-labels") as pool:
        try:
            parts: Iterable[list[Label]] = pool.map(of_shard, range(manifest.shard_count))
            for shard, part in enumerate(parts):
                _, first, count = _place(manifest, shard)
                found[first : first + count] = part
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _place(manifest: Manifest, shard: int) -> tuple[str, int, int]:
    """Return (key, first sample, samples) of a shard."""
    first, count = (int(manifest.shards[name][shard]) for name in ("first", "samples"))
    return manifest.key(shard), first, count


def _of_group(
    window: ReadWindow, key: str, index: int, group: list[tarfile.TarInfo], member: str, path: str
) -> Label:
    """Return the label of one sample from its members."""
    kinds = {info.name.rpartition("/")[2].partition(".")[2].lower(): info for info in group}
    info = kinds.get(member.lower())
    if info is None:
        have = ", ".join(sorted(kinds)[:8])
        raise DatasetError(
            f"sample {index} in shard {key} has no member '{member}' (it has: {have})",
            remedy="name another member: member:NAME; generated data has labels with "
            "--set labels=10",
        )
    if info.size > MAX_LABEL_BYTES:
        raise DatasetError(
            f"the label of sample {index} in shard {key} has {info.size} bytes, more than "
            f"{MAX_LABEL_BYTES}",
            remedy="name another member: member:NAME",
        )
    data = window.bytes(info.offset_data, info.offset_data + info.size)
    if not path:
        return _text(data)
    value: object = None
    try:
        value = parse_json(data)
        for step in path.split("."):
            value = value[step]  # type: ignore[index]
    except (ValueError, KeyError, TypeError, IndexError):
        value = None
    if not isinstance(value, int | str):
        raise DatasetError(
            f"member '{member}' of sample {index} in shard {key} has no whole number or text at "
            f"'{path}'",
            remedy="name another key: member:json:KEY",
        )
    return int(value) if isinstance(value, bool) else value


def _text(label: Label) -> Label:
    """Return bytes as text if they are UTF-8."""
    if not isinstance(label, bytes):
        return label
    try:
        return label.decode("utf-8")
    except UnicodeDecodeError:
        return label


def _changed(key: str) -> DatasetError:
    return DatasetError(
        f"the samples of {key} are not those of the manifest", remedy="scan the data again"
    )


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
    kind = table.dtype.kind
    if table.ndim != 1 or kind not in "iuU" or (kind == "u" and (table > _MAX).any()):
        raise UsageError(
            f"labels cannot be a {type(values).__name__} of this kind",
            remedy="pass a source such as 'auto', or one whole number or name for each sample",
        )
    _check_count(len(table), samples)
    if kind == "U":
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

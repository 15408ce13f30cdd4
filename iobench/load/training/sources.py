"""Where labels are found: the folder of a file, a member of a tar's sample, a Parquet column."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from ...base.documents import parse_json
from ...base.errors import DatasetError
from ...base.limits import MAX_LABEL_BYTES
from ...data.scan.index import sample_of_members, tar_groups
from ...data.scan.parquet import opened
from ...record.manifest import Manifest
from ...record.packing import DATA
from ...storage.base import Storage
from ...storage.window import ReadWindow

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

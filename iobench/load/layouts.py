"""Layouts: copies of a dataset in the file formats of loader libraries.

A layout is written once, into ``layouts/<kind>`` below the dataset's root, and its time is reported
as preparation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ..base.beneath import check_folder, file_status, key_problem
from ..base.documents import MAX_HEADER_BYTES, parse_json, read_regular
from ..base.errors import DatasetError, StorageError, TargetHeldError, UsageError
from ..base.filesystem import sync
from ..base.safety import remove_exactly
from ..base.text import quoted
from ..record.manifest import (
    LAYOUT_BEGUN,
    LAYOUTS,
    Manifest,
    layout_files,
    layout_lock,
    layout_names,
    name_patterns,
    unfinished_layout,
)
from ..record.manifest import LAYOUT_RECORD as RECORD
from ..settings.workload import OWN
from ..storage.base import Storage, local_root
from ..storage.local.storage import LocalStorage
from ..storage.locks.lock import exclusive, shared
from .libraries import converter_class
from .libraries.base import Converts, Source

_TRIES = 3
"""Attempts to lock a layout that other processes replace between the write and the lock."""


@dataclass(frozen=True)
class LibraryLayout:
    """The record of one layout.

    ``dataset`` is the manifest's id. ``seconds`` is the time of the conversion, including reading
    the dataset; ``bytes`` is the size of all files.
    """

    kind: str
    package: str  # name and version of the library that wrote it
    dataset: str
    seconds: float
    bytes: int
    files: tuple[str, ...]  # below the layout's folder


def layout_folder(storage: Storage, kind: str) -> Path:
    """Return the directory of this dataset's layout for a kind of loader; it need not exist.

    Raises UsageError if the dataset is not in a local directory, and StorageError if a symbolic
    link leads out of that directory, or if the layout's path is not a directory.
    """
    root = local_root(storage)
    if root is None:
        raise UsageError(
            f"loader '{kind}' needs a layout (files in its own format) in a local directory, and "
            f"{storage.url} is not one",
            remedy=f"use --set loader.kind={OWN.kind}",
        )
    return layout_place(storage, kind)


def layout_place(storage: Storage, kind: str) -> Path:
    """``layout_folder`` of a dataset that is known to be in a local directory."""
    root = local_root(storage)
    assert root is not None
    for name in (kind, f"{kind}.part"):
        try:
            check_folder(str(root), f"{LAYOUTS}/{name}")
        except OSError as error:
            raise StorageError(
                f"cannot use {root / LAYOUTS / name} for a layout: {error.strerror}",
                remedy="put a directory in its place, or remove it",
            ) from error
    return root / LAYOUTS / kind


def read_layout(storage: Storage, kind: str) -> LibraryLayout | None:
    """Return the layout if it is there and complete, else None."""
    if converter_class(kind) is None:
        return None
    return recorded_layout(layout_folder(storage, kind))


def recorded_layout(folder: Path) -> LibraryLayout | None:
    """Return the layout in its folder if it is there and complete, else None."""
    try:
        data = parse_json(read_regular(folder / RECORD, MAX_HEADER_BYTES))
        found = LibraryLayout(
            kind=str(data["kind"]),
            package=str(data["package"]),
            dataset=str(data["dataset"]),
            seconds=float(data["seconds"]),
            bytes=int(data["bytes"]),
            files=tuple(str(name) for name in data["files"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if all(_is_file(folder, name) for name in found.files) else None


def _is_file(folder: Path, name: str) -> bool:
    """Return whether ``name`` is a regular file below the layout's folder."""
    if key_problem(name):
        return False
    try:
        check_folder(str(folder), name.rpartition("/")[0] or ".")
        file_status(str(folder), name)
    except OSError:
        return False
    return True


def made_layout(manifest: Manifest, storage: Storage, kind: str) -> Path:
    """Return the folder of this dataset's layout.

    Raises UsageError if the layout is missing, incomplete or of other data, and DatasetError if
    iobench did not write it.
    """
    folder = layout_folder(storage, kind)
    found = read_layout(storage, kind)
    if found is not None and found.dataset == manifest.header.id:
        _check(_converter(kind), folder, found)
        return folder
    what = (
        f"there is no complete layout in {folder}"
        if found is None
        else f"the layout in {folder} was made from another dataset"
    )
    root = folder.parent.parent
    raise UsageError(
        f"loader '{kind}' reads a layout (files in its own format), and {what}",
        remedy=f"make it with iobench run WORKLOAD --data {quoted(str(root))} "
        f"--set loader.kind={kind}, or iobench.load.layouts.make_layout",
    )


def _check(library: type[Converts], folder: Path, found: LibraryLayout) -> None:
    """Raise DatasetError if the layout is not what this library writes for iobench."""
    try:
        library.check(folder, found.files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        raise DatasetError(
            f"the layout in {folder} is not one that iobench wrote: {why}",
            remedy="remove it: the next run makes it again from the dataset",
        ) from error


def _converter(kind: str) -> type[Converts]:
    """Return the plug-in that writes this kind's layout. Raises UsageError if there is none."""
    library = converter_class(kind)
    if library is None:
        raise UsageError(f"loader '{kind}' reads no layout", remedy="use it without make_layout")
    return library


def layout_keys(storage: Storage, kind: str) -> list[str]:
    """Return the layout's files as keys of the dataset's storage."""
    found = read_layout(storage, kind)
    return [f"{LAYOUTS}/{kind}/{name}" for name in found.files] if found is not None else []


@contextmanager
def held_layout(source: Source, package: str) -> Iterator[tuple[LibraryLayout, bool]]:
    """Make the layout as ``make_layout`` does, and hold a shared lock on it inside the context.

    The lock keeps other processes from replacing the layout while it is read. Raises
    TargetHeldError if another process writes it at this moment, StorageError, UsageError.
    """
    kind = source.loading.kind
    kept = True
    for _ in range(_TRIES):
        with ExitStack() as stack:
            try:
                place = lock_place(layout_folder(source.storage, kind))
                stack.enter_context(shared(place, layout_lock(kind), verb="run", make=True))
            except StorageError:
                pass  # read-only storage: no lock is possible, and nobody writes there
            have = _usable(source, package)
            if have is not None:
                yield have, kept
                return
        kept = make_layout(source, package)[1]
    raise TargetHeldError(
        f"several processes replace the layout of loader '{kind}' in "
        f"{layout_folder(source.storage, kind)} again and again",
        remedy="use one version of the loader's package, or a copy of the dataset for each",
    )


def make_layout(source: Source, package: str) -> tuple[LibraryLayout, bool]:
    """Convert the dataset for its loader's kind, durably.

    Returns the layout, and whether an earlier one of the same dataset and package was kept. The
    layout is written to a temporary directory (``<kind>.part``) and then renamed, so that nobody
    reads an incomplete one. Raises TargetHeldError if another process reads or writes it,
    StorageError, and UsageError if its directory holds other files.
    """
    have = _usable(source, package)
    if have is not None:
        return have, True
    kind = source.loading.kind
    folder, library = layout_folder(source.storage, kind), _converter(kind)
    with exclusive(lock_place(folder), layout_lock(kind), verb="layout", make=True):
        have = _usable(source, package)  # another process may have made it meanwhile
        if have is not None:
            return have, True
        made = write_layout(
            folder,
            dataset=source.manifest.header.id,
            package=package,
            writes=library.writes,
            convert=lambda part: library.convert(source, part),
        )
        return made, False


def _usable(source: Source, package: str) -> LibraryLayout | None:
    """Return the existing layout if it is of this dataset and this package, else None."""
    have = read_layout(source.storage, source.loading.kind)
    wanted = (source.manifest.header.id, package)
    return have if have is not None and (have.dataset, have.package) == wanted else None


def lock_place(layout: Path) -> LocalStorage:
    """Return the storage of the lock file: the ``layouts`` directory, which is created.

    It is separate from the lock of the dataset itself, which a run holds all the time.
    """
    folder = layout.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot create {folder}: {error.strerror}") from error
    return LocalStorage(folder)


def write_layout(
    folder: Path,
    *,
    dataset: str,
    package: str,
    writes: tuple[str, ...],
    convert: Callable[[Path], None],
) -> LibraryLayout:
    """Write a layout durably, and in place of another one. The caller holds its lock.

    ``writes``: patterns of the names of files that ``convert`` writes into a folder. Raises
    StorageError, and UsageError if the folder holds other files.
    """
    kind = folder.name
    part = folder.with_name(folder.name + ".part")
    started = time.monotonic()
    try:
        _remove(folder, layout_files(folder).__contains__)
        _remove(part, layout_names(unfinished_layout(part) or name_patterns(writes)))
        part.mkdir()  # new: the library writes all files that it will hold
        begun = part / LAYOUT_BEGUN
        begun.write_text(json.dumps({"kind": kind, "writes": writes}) + "\n", encoding="utf-8")
        convert(part)
        begun.unlink()
        files = sorted(str(path.relative_to(part)) for path in part.rglob("*") if path.is_file())
        for path in (*part.rglob("*"), part):
            sync(path)
        size = sum((part / name).stat().st_size for name in files)
        seconds = time.monotonic() - started
        made = LibraryLayout(kind, package, dataset, seconds, size, tuple(files))
        (part / RECORD).write_text(json.dumps(asdict(made), indent=2) + "\n", encoding="utf-8")
        sync(part / RECORD)
        sync(part)
        part.rename(folder)
        for above in (folder.parent, folder.parent.parent):  # so that the rename is durable, too
            sync(above)
    except OSError as error:
        raise StorageError(
            f"cannot write the layout '{kind}' to {folder}: {error.strerror or error}"
        ) from error
    return made


def _remove(folder: Path, owned: Callable[[str], bool]) -> None:
    if not folder.is_dir():
        return
    left = remove_exactly(
        folder, owned, last=(RECORD, LAYOUT_BEGUN), folders=lambda _: True, within=folder.parent
    ).foreign
    if left:
        raise UsageError(
            f"a layout is to be written to {folder}, which holds a file that is not iobench's: "
            f"{left[0]}",
            remedy="move that file to another place",
        )

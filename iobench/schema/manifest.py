"""A dataset describes itself: ``manifest.json`` beside two Arrow tables, one row per shard and one per sample.

Layout below the dataset's root (a directory or a prefix)::

    .iobench-dataset     ownership marker, written first: {"id", "spec", ...}; its presence makes
                         the directory iobench's
    manifest.json        written last and atomically: a dataset without it is half generated
    samples.arrow        SAMPLE_COLUMNS, in sample order (Arrow IPC file, uncompressed: it is
                         mapped, not parsed)
    shards.arrow         SHARD_COLUMNS, in shard order; of scanned data ``key`` as well, the name of
                         each shard: text, or bytes (binary) where a name is not UTF-8
    data/...             the shards
    layouts/KIND/...     the same samples as a loader library wants them, where one was asked for

A million samples are five mapped arrays (36 bytes a sample), not a million objects; forked workers share the mapping.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from ..beneath import NoFileError, open_regular
from ..documents import MAX_HEADER_BYTES, parse_json, read_regular
from ..errors import DatasetError, IobenchError, StorageError
from . import tables
from .arrow_file import check_plain
from .base import Strict, explain
from .claims import check_claims
from .dataset import DatasetSpec
from .packing import Keys, Packing
from .wildcards import matches

MANIFEST = "manifest.json"
MARKER = ".iobench-dataset"
SAMPLES = "samples.arrow"
SHARDS = "shards.arrow"
LAYOUTS = "layouts"
LAYOUT_RECORD = "layout.json"
LAYOUT_BEGUN = ".iobench-layout"
_MAX_STARS = 4
_MAX_PATTERNS = 100  # of a layout's file names, which come from a file: a library has four
FORMAT_VERSION = 1

SAMPLE_COLUMNS = {
    "shard": np.uint32,  # row of shards.arrow
    "offset": np.int64,  # of the sample's stored bytes within the shard
    "stored": np.int64,  # bytes stored, after the codec, without the format's framing
    "size": np.int64,  # bytes of the content, before the codec
    "xxh3": np.uint64,  # xxh3_64 of the content, before the codec
}
SHARD_COLUMNS = {
    "size": np.int64,  # bytes of the whole shard
    "first": np.int64,  # first sample; the shard holds samples first .. first + samples - 1
    "samples": np.int64,
    "xxh3": np.uint64,  # xxh3_64 of the whole shard
}

Array = npt.NDArray[Any]

_REMEDY = "generate the dataset again, or scan it again"


class Header(Strict):
    """``manifest.json``."""

    any_bytes: ClassVar[frozenset[str]] = frozenset({"origin"})

    format_version: int = FORMAT_VERSION
    generator: str
    id: str = Field(pattern=r"^[0-9a-f]{32}$")
    created: str
    spec: DatasetSpec
    samples: int
    shards: int
    stored_bytes: int  # of all shards, framing included
    sample_bytes: int  # of all samples before the codec
    origin: str = ""  # URL of data that iobench did not write (a scanned dataset); '' where shards lie beside the manifest
    checksums: bool = (
        True  # False: the xxh3 columns are empty, because a scan did not read the contents
    )
    # Decoded bytes of a sample over stored ones, at most; None: what the content's builder keeps to
    expansion: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tables: dict[
        str, str
    ]  # file name -> xxh3_64 (hex), so that a foreign or stale table is noticed


class Manifest:
    """A dataset's header and tables. Arrays are read-only; ``key(shard)`` names a shard below the root."""

    def __init__(
        self,
        header: Header,
        samples: dict[str, Array],
        shards: dict[str, Array],
        names: list[str] | None = None,
        numbers: Array | None = None,
        packing: Packing | None = None,
    ) -> None:
        """``packing`` names the shards where ``names`` does not."""
        self.header = header
        self.spec = header.spec
        self.samples = samples
        self.shards = shards
        self.names = names  # of shards that others named
        self.numbers = (
            numbers  # of a part: the samples' numbers in the whole, ascending within a shard
        )
        self.packing = packing
        self.key = _key_of(names, packing)
        self.root: Path | None = (
            None  # where it was loaded from, so that a process that did not fork opens it again
        )

    def __reduce__(self) -> tuple[Any, ...]:
        if self.root is not None and self.packing is not None:
            return _load_again, (self.root, self.packing)
        parts = (self.header, self.samples, self.shards, self.names, self.numbers, self.packing)
        return Manifest, parts

    @property
    def sample_count(self) -> int:
        return self.header.samples

    @property
    def shard_count(self) -> int:
        return self.header.shards

    @property
    def mean_stored_bytes(self) -> float:
        """Bytes of storage behind one sample, framing included."""
        return self.header.stored_bytes / self.header.samples

    def part(self, shards: Array) -> Manifest:
        """The dataset as if it had these shards alone, in this order; samples are numbered anew."""
        firsts, counts = self.shards["first"][shards], self.shards["samples"][shards]
        ends = np.cumsum(counts)
        chosen = np.repeat(firsts - (ends - counts), counts) + np.arange(int(counts.sum()))
        samples = {name: column[chosen] for name, column in self.samples.items()}
        samples["shard"] = np.repeat(np.arange(len(shards), dtype=np.uint32), counts)
        rows = {
            **{name: column[shards] for name, column in self.shards.items()},
            "first": ends - counts,
        }
        totals = {
            "samples": len(chosen),
            "shards": len(shards),
            "stored_bytes": int(rows["size"].sum()),
            "sample_bytes": int(samples["size"].sum()),
        }
        names = [self.key(shard) for shard in shards.tolist()]
        return Manifest(self.header.model_copy(update=totals), samples, rows, names, chosen)

    def keys(self) -> list[str]:
        return [self.key(shard) for shard in range(self.shard_count)]

    def folder(self) -> str:
        """The deepest folder below the root that holds all shards; '' for the root itself."""
        return os.path.commonpath([f"/{key}".rpartition("/")[0] or "/" for key in self.keys()])[1:]


def _key_of(names: list[str] | None, packing: Packing | None) -> Callable[[int], str]:
    if names is not None:
        return names.__getitem__
    if packing is None:
        raise ValueError("a manifest without names of its shards needs a packing")
    return Keys(packing)


def layout_files(folder: Path) -> frozenset[str]:
    """What a loader library's layout consists of, by its own record, which is one of them; names below ``folder``.

    Empty where there is no record that can be read: then nothing says that what lies there is iobench's.
    """
    names = _listed(folder / LAYOUT_RECORD, "files")
    return frozenset({*names, LAYOUT_RECORD}) if names is not None else frozenset()


def layout_lock(kind: str) -> str:
    """The file below LAYOUTS that whoever writes or reads a kind's layout locks."""
    return f".{kind}.lock"


def unfinished_layout(folder: Path) -> tuple[str, ...]:
    """What a layout that was never finished consists of: how its library names its files.

    That was written down before the library began (LAYOUT_BEGUN); () where it was not.
    """
    names = _listed(folder / LAYOUT_BEGUN, "writes")
    return name_patterns(names) if names is not None and len(names) <= _MAX_PATTERNS else ()


def name_patterns(names: Iterable[str]) -> tuple[str, ...]:
    """Names below an unfinished layout, as ``wildcards.matches`` has them, and ours.

    A pattern of more stars than any library of ours has is left out: it is not ours.
    """
    believed = (name for name in names if name.count("*") <= _MAX_STARS)
    return LAYOUT_BEGUN, LAYOUT_RECORD, *believed


def layout_names(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Whether a name below the layout's folder is one of these."""
    known = tuple(patterns)
    return lambda name: any(matches(pattern, name) for pattern in known)


def _listed(record: Path, key: str) -> list[str] | None:
    """The names in a record of ours; None for one that is not there, or can't be understood."""
    try:
        names = parse_json(read_regular(record, MAX_HEADER_BYTES))[key]
        return [str(name) for name in names] if isinstance(names, list) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_table(
    columns: dict[str, Any], arrays: dict[str, Array], names: list[str] | None = None
) -> bytes:
    """An Arrow IPC file (uncompressed) of the given columns, in the schema's order and types.

    ``names`` become a column ``key``: of text, or of bytes where a name is not UTF-8 (file names
    may be any bytes, which Python keeps as lone surrogates; Arrow's text is UTF-8).
    """
    import pyarrow as pa

    table = pa.table(
        {name: np.ascontiguousarray(arrays[name], dtype=dtype) for name, dtype in columns.items()}
    )
    if names is not None:
        table = table.append_column("key", _key_column(names))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        # One batch, so that every column is one contiguous array that numpy can map without a copy.
        writer.write_table(table, max_chunksize=max(1, table.num_rows))
    return bytes(sink.getvalue().to_pybytes())


def read_table(
    columns: dict[str, Any], source: str | bytes
) -> tuple[dict[str, Array], list[str] | None]:
    """Columns of an Arrow IPC file as arrays, mapped where ``source`` is a path; and its column ``key``, if it has one."""
    import pyarrow as pa

    where = source if isinstance(source, str) else "table"
    try:
        mapped = (
            pa.memory_map(os.fsencode(source), "r").read_buffer()
            if isinstance(source, str)
            else source
        )
        check_plain(memoryview(mapped))
        table = pa.ipc.open_file(pa.BufferReader(mapped)).read_all()
        table.validate(full=True)  # that texts and numbers lie within the file
        parts = {name: table.column(name).combine_chunks() for name in columns}
        names = _names(table.column("key")) if "key" in table.column_names else None
    except (pa.ArrowException, KeyError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:
            raise _unread(Path(where), error) from error
        raise DatasetError(
            f"{where} is damaged: {' '.join(str(error).split())[:200]}", remedy=_REMEDY
        ) from None
    if names is not None:
        _check_locale(names, where)
    wrong = [
        name
        for name, dtype in columns.items()
        if parts[name].type != pa.from_numpy_dtype(dtype) or parts[name].null_count
    ]
    if wrong:
        raise DatasetError(
            f"{where}: column '{wrong[0]}' has the wrong type", remedy="generate the dataset again"
        )
    return {name: _values(parts[name], dtype) for name, dtype in columns.items()}, names


def _key_column(names: list[str]) -> Any:
    import pyarrow as pa

    raw = [name.encode("utf-8", "surrogateescape") for name in names]
    try:
        return pa.array([name.decode() for name in raw], pa.large_string())
    except UnicodeDecodeError:
        return pa.array(raw, pa.large_binary())


def _names(column: Any) -> list[str]:
    """The column ``key``. Raises ValueError where it is no column of names, or holds null."""
    import pyarrow as pa

    kind = column.type
    if column.null_count or kind not in (pa.large_string(), pa.string(), pa.large_binary()):
        raise ValueError("column 'key' holds no names")
    names = column.to_pylist()
    if kind == pa.large_binary():
        names = [name.decode("utf-8", "surrogateescape") for name in names]
    return list(names)


def _check_locale(names: list[str], where: str) -> None:
    """Raises DatasetError where a name can't be encoded for the system (a locale without UTF-8)."""
    try:
        for name in names:
            os.fsencode(name)
    except UnicodeEncodeError as error:
        raise DatasetError(
            f"{where}: some names cannot be written in this locale's encoding ({error.encoding})",
            remedy="set LC_ALL=C.UTF-8",
        ) from None


def _values(column: Any, dtype: Any) -> Array:
    """A column's values where they lie. (Arrow's own ``to_numpy`` imports pandas where it is installed, which takes time and memory.)"""
    if not len(column):
        return np.empty(0, dtype)
    start = column.offset * np.dtype(dtype).itemsize
    return np.frombuffer(column.buffers()[1], dtype, len(column), start)


def parse_header(text: bytes, *, where: str) -> Header:
    """``manifest.json`` from its bytes. Raises DatasetError naming what does not fit."""
    try:
        if len(text) > MAX_HEADER_BYTES:
            raise ValueError(f"it has more than {MAX_HEADER_BYTES >> 20} MiB")
        data = parse_json(text)
        version = data.get("format_version") if isinstance(data, dict) else None
        if version != FORMAT_VERSION:
            raise DatasetError(
                f"{where} has format version {str(version)[:20]}, this iobench reads "
                f"{FORMAT_VERSION}",
                remedy="generate the dataset again",
            )
        return Header.model_validate(data)
    except ValueError as error:  # pydantic's ValidationError is one
        why = explain(Header, error) if isinstance(error, ValidationError) else str(error)
        raise DatasetError(
            f"{where} is not an iobench manifest: {why}",
            remedy="generate the dataset again",
        ) from None


def _load_again(root: Path, packing: Packing) -> Manifest:
    """In a process that did not fork: the manifest that it was sent."""
    return load_manifest(root, lambda spec, where: packing)


PackingOf = Callable[[DatasetSpec, str], Packing]
"""The packing of a specification that was read at a place; ``iobench.dataset.packing_at``."""


def load_manifest(root: str | Path, packing_of: PackingOf) -> Manifest:
    """The manifest of a dataset directory.

    Raises DatasetError: no such directory, not a dataset, half generated, or tables that are not
    the ones the manifest was written with; and what ``packing_of`` raises.
    """
    root = Path(root)
    if not root.is_dir():
        raise DatasetError(
            f"no dataset at {root}: no such directory",
            remedy=_how_to_get(root),
        )
    if not _is_there(root / MANIFEST):
        if _is_there(root / MARKER):
            raise DatasetError(
                f"the dataset at {root} is half generated",
                remedy="finish it: run the same iobench generate again",
            )
        raise DatasetError(
            f"{root} is not an iobench dataset (no {MANIFEST})",
            remedy=(
                "to measure data of yours, take it up first: iobench scan "
                f"{root} --save mine.yaml; or generate data: iobench generate NAME --to {root}/NEW"
            ),
        )
    try:
        text = read_regular(root / MANIFEST, MAX_HEADER_BYTES)
    except OSError as error:
        raise _unread(root / MANIFEST, error) from error
    except ValueError as error:
        raise DatasetError(f"cannot read {root / MANIFEST}: {error}") from None
    header = parse_header(text, where=str(root / MANIFEST))
    manifest = assemble(
        header,
        lambda name: str(root / name),
        lambda name: _hash_file(root / name),
        packing_of(header.spec, str(root / MANIFEST)),
    )
    manifest.root = root
    return manifest


def _how_to_get(root: Path) -> str:
    """What to do where there is no directory: a spec is no dataset, whatever lies beside it."""
    if root.suffix not in (".yaml", ".yml"):
        return f"generate one: iobench generate NAME --to {root}"
    scanned = root.with_suffix(".manifest")
    if scanned.is_dir():
        return f"this is the spec of scanned data: name {scanned} with --origin instead"
    return f"this is a spec: iobench generate {root} --to DIR, and name DIR"


def _is_there(path: Path) -> bool:
    """Whether something has this name. Raises StorageError where that can't be told."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unread(path, error) from error
    return True


def _unread(path: Path, error: OSError) -> IobenchError:
    """What is damaged can be generated again; what could not be read may be good."""
    why = error.strerror or str(error)
    if isinstance(error, NoFileError | FileNotFoundError):
        return DatasetError(f"cannot read {path}: {why}", remedy=_REMEDY)
    return StorageError(
        f"cannot read {path}: {why}", remedy="check the permissions, the device and the file system"
    )


def assemble(
    header: Header,
    source: Callable[[str], str | bytes],
    checksum: Callable[[str], str],
    packing: Packing,
) -> Manifest:
    """Header and tables to a Manifest, after checking that they belong together."""
    read: list[dict[str, Array]] = []
    names: list[str] | None = None
    for name, columns, rows in (
        (SAMPLES, SAMPLE_COLUMNS, header.samples),
        (SHARDS, SHARD_COLUMNS, header.shards),
    ):
        if checksum(name) != header.tables.get(name):
            raise DatasetError(
                f"{name} is not the table that {MANIFEST} was written with",
                remedy="generate the dataset again",
            )
        arrays, names = read_table(columns, source(name))
        if len(next(iter(arrays.values()))) != rows:
            raise DatasetError(
                f"{name} has {len(next(iter(arrays.values())))} rows, {MANIFEST} says {rows}",
                remedy="generate the dataset again",
            )
        read.append(arrays)
    if (names is not None) != bool(header.origin):
        raise DatasetError(
            f"{SHARDS} does not belong to {MANIFEST}: only scanned data has names of its own",
            remedy="scan it again",
        )
    samples, shards = read
    _check(header, samples, shards, names, packing)
    return Manifest(header, samples, shards, names, packing=packing)


def _check(
    header: Header,
    samples: dict[str, Array],
    shards: dict[str, Array],
    names: list[str] | None,
    packing: Packing,
) -> None:
    """Raises DatasetError that names the table, the row and the column that can't be."""
    if header.samples < 1 or header.stored_bytes < 1:
        raise DatasetError(
            f"{MANIFEST} tells of {header.samples} samples in {header.stored_bytes} bytes",
            remedy=_REMEDY,
        )
    problem, table = tables.shard_problem(shards, samples=header.samples), SHARDS
    if problem is None and names is not None:
        problem = tables.name_problem(names)
    if problem is None:
        problem = tables.sample_problem(samples, shards, plain=packing.plain and not packing.blocks)
        table = SAMPLES
    if problem is not None:
        raise DatasetError(f"{table} is wrong: {problem}", remedy=_REMEDY)
    check_claims(
        header.expansion,
        samples,
        _key_of(names, packing),
        blocks=packing.blocks,
        plain=packing.plain,
    )
    stored, content = tables.column_sum(shards["size"]), tables.column_sum(samples["size"])
    # Of scanned data only what a reader needs is counted: other columns may lie in a shard.
    if header.stored_bytes > stored or (not header.origin and header.stored_bytes != stored):
        raise DatasetError(
            f"{MANIFEST} tells of {header.stored_bytes} stored bytes, {SHARDS} of {stored}",
            remedy=_REMEDY,
        )
    if header.sample_bytes != content:
        raise DatasetError(
            f"{MANIFEST} tells of {header.sample_bytes} bytes of samples, {SAMPLES} of {content}",
            remedy=_REMEDY,
        )


def hash_bytes(data: bytes) -> str:
    import xxhash

    return xxhash.xxh3_64_hexdigest(data)


def _hash_file(path: Path) -> str:
    import xxhash

    digest = xxhash.xxh3_64()
    try:
        fd = open_regular(path)
        with open(fd, "rb", buffering=0) as file:
            while chunk := file.read(8 << 20):
                digest.update(chunk)
    except OSError as error:
        raise _unread(path, error) from error
    return digest.hexdigest()

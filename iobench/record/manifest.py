"""The manifest of a dataset: ``manifest.json`` and two Arrow tables.

One table has one row per shard, the other one row per sample.

Layout below the dataset's root (a directory or a prefix)::

    .iobench-dataset     ownership marker, written first: {"id", "spec", ...}; it marks the
                         directory as one of iobench
    manifest.json        written last and atomically: a dataset without it is incomplete
    samples.arrow        SAMPLE_COLUMNS, in sample order (Arrow IPC file, uncompressed, so that it
                         can be mapped into memory)
    shards.arrow         SHARD_COLUMNS, in shard order; for scanned data also ``key``, the name of
                         each shard: text, or bytes (binary) if a name is not UTF-8
    data/...             the shards
    layouts/KIND/...     the same samples in the file format of a library, if requested

A million samples are five mapped arrays (36 bytes per sample), not a million objects. Forked
workers share the mapping.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from ..base.beneath import NoFileError, open_regular
from ..base.documents import MAX_HEADER_BYTES, parse_json, read_regular, require_place
from ..base.errors import DatasetError, IobenchError, StorageError
from ..base.text import quoted
from ..settings.base import Strict, explain
from ..settings.dataset import DatasetSpec
from . import tables
from .arrow import check_plain, number_column, numbers, text_column
from .packing import Keys, Packing, matches
from .typed import ArrayText

MANIFEST = "manifest.json"
MARKER = ".iobench-dataset"
SAMPLES = "samples.arrow"
SHARDS = "shards.arrow"
LAYOUTS = "layouts"
ENGINES = ("lancedb",)
"""Kinds of layouts that are the index of a search engine; all others are of loaders."""

LAYOUT_RECORD = "layout.json"
LAYOUT_BEGUN = ".iobench-layout"
_MAX_STARS = 4
_MAX_PATTERNS = 100  # of a layout's file names in a record on disk; a library has at most four
FORMAT_VERSION = 1

SAMPLE_COLUMNS: dict[str, type[np.generic]] = {
    "shard": np.uint32,  # row of shards.arrow
    "offset": np.int64,  # of the sample's stored bytes within the shard
    "stored": np.int64,  # bytes stored, after the codec, without the format's framing
    "size": np.int64,  # bytes of the content, before the codec
    "xxh3": np.uint64,  # xxh3_64 of the content, before the codec
}
SHARD_COLUMNS: dict[str, type[np.generic]] = {
    "size": np.int64,  # bytes of the whole shard
    "first": np.int64,  # first sample; the shard holds samples first .. first + samples - 1
    "samples": np.int64,
    "xxh3": np.uint64,  # xxh3_64 of the whole shard
}

Array = Annotated[npt.NDArray[Any], ArrayText()]
"""A column of a table; SAMPLE_COLUMNS and SHARD_COLUMNS say of which type."""

_REMEDY = "generate the dataset again, or scan it again"


class Header(Strict):
    """The content of ``manifest.json``."""

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
    # URL of data that iobench did not write (a scanned dataset); '': the shards are next to the
    # manifest.
    origin: str = ""
    # False: the xxh3 columns are empty, because a scan did not read the contents.
    checksums: bool = True
    # Largest ratio of a sample's decoded bytes to its stored bytes; None: the content's own limit.
    expansion: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    # File name -> xxh3_64 (hex), so that a foreign or outdated table is noticed.
    tables: dict[str, str]


class Manifest:
    """A dataset's header and tables.

    The arrays are read-only. ``key(shard)`` returns the name of a shard below the root.
    """

    def __init__(
        self,
        header: Header,
        samples: dict[str, Array],
        shards: dict[str, Array],
        names: list[str] | None = None,
        numbers: Array | None = None,
        packing: Packing | None = None,
    ) -> None:
        """``packing`` gives the names of the shards if ``names`` is None."""
        self.header = header
        self.spec = header.spec
        self.samples = samples
        self.shards = shards
        self.names = names  # names of shards that iobench did not write
        # Of a part: the samples' numbers in the whole dataset, ascending within a shard.
        self.numbers = numbers
        self.packing = packing
        self.key = _key_of(names, packing)
        # The directory from which it was loaded. A process that was not forked loads it again.
        self.root: Path | None = None

    def __reduce__(self) -> tuple[object, ...]:
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
        """Mean stored bytes of one sample, framing included."""
        return self.header.stored_bytes / self.header.samples

    def part(self, shards: Array) -> Manifest:
        """Return a manifest of only these shards, in this order.

        Samples are numbered again, from 0.
        """
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
        """Return the deepest folder below the root with all shards; '' for the root itself."""
        return os.path.commonpath([f"/{key}".rpartition("/")[0] or "/" for key in self.keys()])[1:]


def _key_of(names: list[str] | None, packing: Packing | None) -> Callable[[int], str]:
    if names is not None:
        return names.__getitem__
    if packing is None:
        raise ValueError("a manifest without names of its shards needs a packing")
    return Keys(packing)


def layout_files(folder: Path) -> frozenset[str]:
    """Return the names of a finished layout's files below ``folder``, by its record.

    The record is one of them. Empty if there is no readable record: then nothing shows that the
    files in the folder are iobench's.
    """
    names = _listed(folder / LAYOUT_RECORD, "files")
    return frozenset({*names, LAYOUT_RECORD}) if names is not None else frozenset()


def layout_lock(kind: str) -> str:
    """Return the name of the lock file below LAYOUTS for writers and readers of a layout."""
    return f".{kind}.lock"


def unfinished_layout(folder: Path) -> tuple[str, ...]:
    """Return the patterns of an unfinished layout's file names.

    They are recorded in LAYOUT_BEGUN before the library writes its first file. () if that record is
    missing or not valid.
    """
    names = _listed(folder / LAYOUT_BEGUN, "writes")
    return name_patterns(names) if names is not None and len(names) <= _MAX_PATTERNS else ()


def name_patterns(names: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns for names below an unfinished layout (see ``packing.matches``).

    iobench's own two records are added. A pattern with more than ``_MAX_STARS`` stars is left out,
    since iobench's libraries have none.
    """
    believed = (name for name in names if name.count("*") <= _MAX_STARS)
    return LAYOUT_BEGUN, LAYOUT_RECORD, *believed


def layout_names(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that says whether a name matches one of the patterns."""
    known = tuple(patterns)
    return lambda name: any(matches(pattern, name) for pattern in known)


def _listed(record: Path, key: str) -> list[str] | None:
    """Return the names in a record of iobench; None if it is missing or not valid."""
    try:
        names = parse_json(read_regular(record, MAX_HEADER_BYTES))[key]
        return [str(name) for name in names] if isinstance(names, list) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_table(
    columns: Mapping[str, type[np.generic]],
    arrays: Mapping[str, Array],
    names: list[str] | None = None,
) -> bytes:
    """Return an uncompressed Arrow IPC file of the columns, in the schema's order and types.

    ``names`` become a column ``key`` of text, or of bytes if a name is not UTF-8. (File names may
    be any bytes, which Python represents as lone surrogates; text in Arrow must be UTF-8.)
    """
    import pyarrow as pa

    table = pa.table(
        {
            name: number_column(np.asarray(arrays[name], dtype=dtype))
            for name, dtype in columns.items()
        }
    )
    if names is not None:
        table = table.append_column("key", _key_column(names))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        # One batch, so that every column is one array that numpy can use without a copy.
        writer.write_table(table, max_chunksize=max(1, table.num_rows))
    return bytes(sink.getvalue().to_pybytes())


def read_table(
    columns: Mapping[str, type[np.generic]], source: str | bytes
) -> tuple[dict[str, Array], list[str] | None]:
    """Read columns of an Arrow IPC file as arrays, and its column ``key``, if it has one.

    The arrays are mapped into memory if ``source`` is a path. Raises DatasetError, StorageError.
    """
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
        table.validate(full=True)  # checks that texts and numbers are within the file
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
    return {name: numbers(parts[name]) for name in columns}, names


def _key_column(names: list[str]) -> Any:
    import pyarrow as pa

    raw = [name.encode("utf-8", "surrogateescape") for name in names]
    try:
        b"\0".join(raw).decode()
    except UnicodeDecodeError:
        return text_column(raw, pa.large_binary())
    return text_column(raw, pa.large_string())


def _names(column: Any) -> list[str]:
    """Return the names in column ``key``. Raises ValueError if it has another type or a null."""
    import pyarrow as pa

    kind = column.type
    if column.null_count or kind not in (pa.large_string(), pa.string(), pa.large_binary()):
        raise ValueError("column 'key' has no names")
    names = column.to_pylist()
    if kind == pa.large_binary():
        names = [name.decode("utf-8", "surrogateescape") for name in names]
    return list(names)


def _check_locale(names: list[str], where: str) -> None:
    """Raise DatasetError if this locale (one without UTF-8) cannot encode a name."""
    try:
        for name in names:
            os.fsencode(name)
    except UnicodeEncodeError as error:
        raise DatasetError(
            f"{where}: some names cannot be written in this locale's encoding ({error.encoding})",
            remedy="set LC_ALL=C.UTF-8",
        ) from None


def parse_header(text: bytes, *, where: str) -> Header:
    """Parse ``manifest.json``. Raises DatasetError that names the wrong key."""
    try:
        if len(text) > MAX_HEADER_BYTES:
            raise ValueError(f"it has more than {MAX_HEADER_BYTES >> 20} MiB")
        data = parse_json(text)
        version = data.get("format_version") if isinstance(data, dict) else None
        if version != FORMAT_VERSION:
            raise DatasetError(
                f"{where} has format version {str(version)[:20]}, this version of iobench reads "
                f"{FORMAT_VERSION}",
                remedy="generate the dataset again",
            )
        return Header.model_validate(data)
    except ValueError as error:  # includes pydantic's ValidationError
        why = explain(Header, error) if isinstance(error, ValidationError) else str(error)
        raise DatasetError(
            f"{where} is not an iobench manifest: {why}",
            remedy="generate the dataset again",
        ) from None


def _load_again(root: Path, packing: Packing) -> Manifest:
    """Load the manifest again, in a process that was not forked."""
    return load_manifest(root, lambda spec, where: packing)


PackingOf = Callable[[DatasetSpec, str], Packing]
"""Function from a specification, and the place it was read from, to its packing.

``iobench.data.dataset.packing_at`` is one.
"""


def load_manifest(root: str | Path, packing_of: PackingOf) -> Manifest:
    """Load the manifest of a dataset directory.

    Raises MissingPlaceError or UsageError if there is no such directory; DatasetError if it is not
    a dataset or is incomplete, or if the tables do not belong to the manifest; StorageError if a
    file cannot be read; and what ``packing_of`` raises.
    """
    root = Path(root)
    if not root.is_dir():
        require_place(root, _how_to_get(root))
    if not _is_there(root / MANIFEST):
        if _is_there(root / MARKER):
            raise DatasetError(
                f"the dataset at {root} is half generated",
                remedy="finish it: run the same iobench generate again",
            )
        raise DatasetError(
            f"{root} is not an iobench dataset (no {MANIFEST})",
            remedy=(
                "to measure existing data, scan it first: iobench scan "
                f"{quoted(str(root))} --save mine.yaml; or generate data: iobench generate NAME "
                f"--to {quoted(f'{root}/NEW')}"
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
    """Return the remedy for a path that is not a directory; it may be a spec's file."""
    if scheme := next((part for part in root.parts if part.endswith(":")), ""):
        return f"a URL has two slashes: {scheme}//..."
    if root.suffix not in (".yaml", ".yml"):
        if root.exists():
            folder = quoted(str(root.parent))
            return (
                f"to measure existing data, scan its folder: iobench scan {folder} --save mine.yaml"
            )
        return f"generate one: iobench generate NAME --to {quoted(str(root))}"
    scanned = root.with_suffix(".manifest")
    if scanned.is_dir():
        return f"this is the spec of scanned data: use {scanned} and --origin instead"
    made = f"iobench generate {quoted(str(root))} --to DIR"
    return f"this is a dataset spec: run {made}, and then use DIR"


def _is_there(path: Path) -> bool:
    """Return whether the path exists. Raises StorageError if this cannot be checked."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unread(path, error) from error
    return True


def _unread(path: Path, error: OSError) -> IobenchError:
    """Return DatasetError for a missing file, and StorageError for one that cannot be read.

    A missing file must be generated again; a file that cannot be read may be intact.
    """
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
    """Make a Manifest. Raises DatasetError if header and tables do not belong together."""
    read: list[dict[str, Array]] = []
    names: list[str] | None = None
    for name, columns, rows in (
        (SAMPLES, SAMPLE_COLUMNS, header.samples),
        (SHARDS, SHARD_COLUMNS, header.shards),
    ):
        if checksum(name) != header.tables.get(name):
            raise DatasetError(
                f"{name} does not match its checksum in {MANIFEST}",
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
            f"{SHARDS} does not match {MANIFEST}: only scanned data has a name for each shard",
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
    """Raise DatasetError that names the table, row and column of the first wrong value."""
    if header.samples < 1 or header.stored_bytes < 1:
        raise DatasetError(
            f"{MANIFEST} states {header.samples} samples in {header.stored_bytes} bytes",
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
    tables.check_claims(
        header.expansion,
        samples,
        _key_of(names, packing),
        blocks=packing.blocks,
        plain=packing.plain,
    )
    stored, content = tables.column_sum(shards["size"]), tables.column_sum(samples["size"])
    # stored_bytes of scanned data excludes what no reader needs, such as other columns.
    if header.stored_bytes > stored or (not header.origin and header.stored_bytes != stored):
        raise DatasetError(
            f"{MANIFEST} states {header.stored_bytes} stored bytes, but {SHARDS} {stored}",
            remedy=_REMEDY,
        )
    if header.sample_bytes != content:
        raise DatasetError(
            f"{MANIFEST} states {header.sample_bytes} bytes of samples, but {SAMPLES} {content}",
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

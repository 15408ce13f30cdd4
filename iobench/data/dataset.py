"""A dataset: its specification, the plug-ins that it names, and its manifest.

A manifest may come from others and must not decide where requests are sent. Therefore the place
that it names for its samples is used only if it is in the manifest's own directory. The user has to
name any other place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base.documents import MAX_HEADER_BYTES
from ..base.errors import DatasetError, SpecError, UsageError
from ..base.text import printable, quoted
from ..record import manifest as on_disk
from ..record.manifest import MANIFEST, MARKER, SAMPLES, SHARDS, Manifest, hash_bytes, parse_header
from ..record.packing import FOLDER_FILES, Keys, Layout, Packing
from ..settings import dataset as schema
from ..settings.dataset import DatasetSpec
from ..storage import is_local, open_storage, rewrapped
from ..storage.base import Storage, address_of, exists, innermost, local_root, read_object
from .codecs import CODECS
from .codecs.base import Codec
from .contents import CONTENTS
from .contents.base import Content
from .formats import FORMATS
from .formats.base import Blocks, Format, Framed


@dataclass(frozen=True, kw_only=True)
class ResolvedSpec:
    """A specification with the plug-ins that it names."""

    spec: DatasetSpec
    format: Format
    content: Content
    codec: Codec

    @classmethod
    def of(cls, found: DatasetSpec | Manifest) -> ResolvedSpec:
        """Load the plug-ins of a specification.

        Raises SpecError, UnknownNameError, and UsageError if a plug-in cannot be loaded.
        """
        spec = found if isinstance(found, DatasetSpec) else found.spec
        form, content = FORMATS.open(spec.format), CONTENTS.open(spec.content)
        if spec.labels is not None:
            try:
                form, content = form.labelled(spec.labels), content.labelled(spec.labels)
            except ValueError as error:
                raise SpecError(
                    f"dataset '{spec.name}': {error}",
                    remedy="use format tar or files with content jpeg, or --set labels=null",
                ) from None
        return ResolvedSpec(spec=spec, format=form, content=content, codec=CODECS.open(spec.codec))

    @property
    def suffix(self) -> str:
        """Suffix of a file with one sample ('.npz.zst'), also of members of an archive."""
        return self.content.suffix + self.codec.suffix

    @property
    def blocks(self) -> bool:
        """Whether samples are read by blocks."""
        return isinstance(self.format, Blocks)

    @property
    def packing(self) -> Packing:
        """The properties of the plug-ins that a manifest needs."""
        single = self.format.one_sample_per_shard
        return Packing(
            name=self.spec.name,
            single=single,
            suffix=self.suffix if single else self.format.suffix,
            blocks=self.blocks,
            plain=self.codec.plain,
            index_name=self.format.index_name,
            class_folders=self.spec.labels if self.format.class_folders else None,
            folder_files=self.spec.files_per_directory or FOLDER_FILES,
        )

    @property
    def keys(self) -> Keys:
        """The keys of the shards that ``generate`` writes."""
        return Keys(self.packing)


def read_by_blocks(spec: DatasetSpec) -> bool:
    """Whether samples of this specification are read by blocks. Loads its format alone."""
    return isinstance(FORMATS.open(spec.format), Blocks)


def layout_of(spec: DatasetSpec) -> Layout:
    """How samples lie in the shards of a dataset with this specification.

    Raises SpecError, UnknownNameError, and UsageError if a plug-in cannot be loaded.
    """
    resolved = ResolvedSpec.of(spec)
    form, framing = resolved.format, 0.0
    if isinstance(form, Framed):
        stored = round(schema.expected_stored_bytes(spec))
        framing = float(sum(form.margins(spec.samples // 2, resolved.suffix, stored)))
    blocks = isinstance(form, Blocks)
    return Layout(
        blocks=blocks,
        block_bytes=(spec.block_size or form.block_bytes) if isinstance(form, Blocks) else None,
        framing_bytes=framing,
        prefers_random=form.access == "random",
    )


@dataclass(frozen=True, kw_only=True)
class Dataset(ResolvedSpec):
    """An existing dataset: its specification and plug-ins, its manifest, and its places.

    ``url`` is the directory or URL at which it was opened, and ``place`` the one from which its
    shards are read. They differ for scanned data, whose manifest is stored elsewhere.
    """

    manifest: Manifest
    url: str
    place: str

    @classmethod
    def open(
        cls, url: str, options: Mapping[str, str] | None = None, *, origin: str | None = None
    ) -> Dataset:
        """Open the dataset at a path or URL, with the arguments and errors of ``find_dataset``."""
        manifest, place = find_dataset(url, options, origin=origin)
        resolved = ResolvedSpec.of(manifest)
        return cls(
            spec=resolved.spec,
            format=resolved.format,
            content=resolved.content,
            codec=resolved.codec,
            manifest=manifest,
            url=url,
            place=place,
        )

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def sample_count(self) -> int:
        return self.manifest.sample_count

    @property
    def shard_count(self) -> int:
        return self.manifest.shard_count

    @property
    def stored_bytes(self) -> int:
        """Bytes of all shards, framing included."""
        return self.manifest.header.stored_bytes

    def open_storage(self) -> Storage:
        """Open the storage of the shards, for reads through the page cache."""
        return open_storage(self.place)


def open_dataset(url: str | Path, *, origin: str | None = None) -> Dataset:
    """Open the dataset at a directory or URL.

    ``origin`` is the place of a scanned dataset's data, as ``--origin``. The shards are not
    checked; ``verify_dataset`` reads them. Raises DatasetError, StorageError, UsageError.

    >>> dataset = iobench.open_dataset("demo-data")
    >>> dataset.name, dataset.sample_count, dataset.spec.content
    ('demo', 40, 'jpeg')
    """
    return Dataset.open(str(url), origin=origin)


# Specifications


def load_dataset_spec(name: str, overrides: Sequence[str] = ()) -> DatasetSpec:
    """Load a dataset's specification by name or path, with ``a.b=c`` overrides.

    If an override sets the format, keys of the file that this format cannot have are removed.
    Raises SpecError, UnknownNameError, and UsageError if a plug-in cannot be loaded.
    """
    return schema.load_dataset_spec(name, overrides, without=_keys_that_it_cannot_have)


def _keys_that_it_cannot_have(form: object) -> Collection[str]:
    """Return the keys that a DatasetSpec of this format cannot have.

    Raises UsageError if a plug-in cannot be loaded.
    """
    if isinstance(form, str) and schema.is_content(form):  # one file of it for each sample
        return (*schema.SHARD_KEYS, *schema.BLOCK_KEYS)
    if not isinstance(form, str) or form not in FORMATS.entries():
        return schema.BLOCK_KEYS
    kind = FORMATS.open(form)
    lacking = schema.SHARD_KEYS if kind.one_sample_per_shard else schema.FOLDER_KEYS
    return lacking if isinstance(kind, Blocks) else (*lacking, *schema.BLOCK_KEYS)


def with_shards_stated(spec: DatasetSpec) -> DatasetSpec:
    """Return the specification with ``samples_per_shard: 1`` if its format determines this.

    ``settings.dataset.expected_samples_per_shard`` needs it, as it knows no plug-ins.
    """
    if spec.shards_unsaid and FORMATS.open(spec.format).one_sample_per_shard:
        return spec.model_copy(update={"samples_per_shard": 1})
    return spec


def cheaper_codecs(dataset: ResolvedSpec) -> list[str]:
    """Return the codecs of the format that decompress faster than the dataset's, slowest first.

    Codecs with an unknown cost are left out. If the cost of the dataset's own codec is unknown,
    only ``none`` remains.
    """
    costs: dict[str, float] = {}
    for name in CODECS.entries():
        try:
            codec = CODECS.open(name)
            dataset.format.check_spec(dataset.spec.model_copy(update={"codec": name}), codec)
        except (UsageError, ValueError):
            continue  # not installed, or not supported by this format
        own = dataset.codec.decode_cost
        cheaper = codec.plain if own is None else (codec.decode_cost or 0) < own
        if codec.decode_cost is not None and cheaper:
            costs[name] = codec.decode_cost
    return sorted(costs, key=lambda name: -costs[name])


# Manifests


def packing_at(spec: DatasetSpec, where: str) -> Packing:
    """Return the packing of a specification that was read at ``where``.

    Raises DatasetError, UnknownNameError, UsageError.
    """
    try:
        return ResolvedSpec.of(spec).packing
    except SpecError as error:
        raise DatasetError(
            f"{where} is not an iobench manifest: {error.what}",
            remedy="generate the dataset again",
        ) from None


def load_manifest(root: str | Path) -> Manifest:
    """Load the manifest of a dataset directory.

    Raises DatasetError if the directory does not exist, is not a dataset or is incomplete, or if
    the tables do not belong to the manifest; StorageError if a file cannot be read;
    UnknownNameError and UsageError for a plug-in that is missing.
    """
    return on_disk.load_manifest(root, packing_at)


def index_file(manifest: Manifest) -> tuple[str, bytes] | None:
    """Return key and content of the index file for other readers of the format, or None.

    It is for the shards of ``manifest``, which may be a part of a dataset.
    """
    found = ResolvedSpec.of(manifest)
    key = found.packing.index_key
    if key is None:
        return None
    names = [key.rpartition("/")[2] for key in manifest.keys()]  # noqa: SIM118
    return key, found.format.index(names, manifest.shards["size"], manifest.shards["samples"])


def find_dataset(
    url: str, options: Mapping[str, str] | None = None, *, origin: str | None = None
) -> tuple[Manifest, str]:
    """Return the manifest at a path or URL, and the URL from which to read its shards.

    The two places differ only for a scanned dataset, whose manifest is stored separately from the
    data that iobench did not write. ``origin`` is the place of that data. Without it, the place in
    the manifest is used only if it is a local path in the manifest's directory. The wrappers of
    ``url`` are applied to the data, too. ``options`` are for the data's storage. Raises
    DatasetError, StorageError, UsageError.
    """
    manifest = read_manifest(open_storage(url, options=manifest_options(url, options, origin)))
    return manifest, place_of(manifest, url, origin)


def manifest_options(
    url: str, options: Mapping[str, str] | None, origin: str | None
) -> Mapping[str, str] | None:
    """Return the part of a dataset's ``options`` that applies to reading its manifest.

    None if an ``origin`` is given and the manifest is in a local directory.
    """
    return None if origin is not None and is_local(url) else options


def place_of(manifest: Manifest, url: str, origin: str | None = None) -> str:
    """Return the URL from which to read the shards of a manifest at ``url``.

    See ``find_dataset``. Raises UsageError.
    """
    said = manifest.header.origin
    if origin is not None:
        if not said:
            raise UsageError(
                f"--origin is for scanned data, but {url} has shards of its own",
                remedy="leave --origin out",
            )
        return rewrapped(url, origin)
    if not said:
        return url
    if manifest.root is None or not _lies_in(said, manifest.root):
        raise UsageError(
            f"the manifest at {url} says that its samples are at '{printable(said, 100)}', but "
            "iobench does not follow a manifest to another place",
            remedy="if that is your data, add --origin with its URL (in Python: origin=)",
        )
    return rewrapped(url, said)


def _lies_in(place: str, folder: Path) -> bool:
    """Return whether a place is a local path in ``folder``, with all symbolic links resolved."""
    if "://" in place or "\0" in place or not place.startswith("/"):
        return False
    try:
        return Path(place).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a loop of symbolic links
        return False


def read_manifest(storage: Storage) -> Manifest:
    """Read the manifest at a storage's root, without the storage's wrappers.

    Raises DatasetError if there is no manifest, or if it is damaged or incomplete; StorageError;
    UnknownNameError and UsageError for a plug-in that is missing.
    """
    storage = innermost(storage)
    root = local_root(storage)
    if root is not None:
        return load_manifest(root)
    if not exists(storage, MANIFEST):
        if exists(storage, MARKER):
            raise DatasetError(
                f"the dataset at {storage.url} is only half generated",
                remedy="finish it: run the same iobench generate command again",
            )
        there = quoted(address_of(storage))
        raise DatasetError(
            f"no dataset at {storage.url} (no {MANIFEST})",
            remedy=(
                f"to measure your own data, scan it first: iobench scan {there} --save mine.yaml; "
                f"or generate data: iobench generate NAME --to {there}"
            ),
        )
    where = f"{storage.url}/{MANIFEST}"
    header = parse_header(
        read_object(storage, MANIFEST, max_bytes=MAX_HEADER_BYTES),
        where=where,
    )
    tables = {name: read_object(storage, name) for name in (SAMPLES, SHARDS)}
    return on_disk.assemble(
        header,
        tables.__getitem__,
        lambda name: hash_bytes(tables[name]),
        packing_at(header.spec, where),
    )

"""Plug-ins by name. A built-in is a ``"module:attribute"`` string, imported only when it is used.

Third parties register under the entry-point groups ``iobench.storage``, ``iobench.formats``,
``iobench.contents``, ``iobench.codecs``, ``iobench.accelerators``, ``iobench.networks``,
``iobench.loaders`` and ``iobench.writers``. They can't replace a built-in name.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from traceback import walk_tb
from types import ModuleType
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from .errors import SpecError, UnknownNameError, UsageError
from .extras import install_command

if TYPE_CHECKING:  # types of the plug-ins, for annotations only
    from .accelerate.base import Accelerator
    from .accelerate.models.base import Model
    from .checkpoint.base import CheckpointWriter
    from .codecs.base import Codec
    from .contents.base import Content
    from .formats.base import Format
    from .load.libraries.base import Library
    from .load.loader import BatchLoader
    from .load.user.loader import UserLoader
    from .storage.base import Storage

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """Where a plug-in is defined, a summary in one line, and the extra that installs its packages.

    ``extra`` is '' if iobench itself installs everything that the plug-in needs.
    """

    target: str
    summary: str
    extra: str = ""


class Registry(Generic[T]):
    """A table of plug-ins of one kind (``format``, ``codec``, ...): classes with instances of T.

    ``base``: the class that third parties' plug-ins must subclass, as ``"module:attribute"``; '' if
    any object is accepted.
    """

    def __init__(
        self, kind: str, group: str, builtins: dict[str, Entry], *, base: str = ""
    ) -> None:
        self.kind = kind
        self.group = group
        self._base = base
        self._builtins = frozenset(builtins)
        self._entries = dict(builtins)
        self._discovered = False

    def entries(self) -> dict[str, Entry]:
        """All known plug-ins by name; nothing is imported."""
        if not self._discovered:
            from importlib.metadata import entry_points

            self._discovered = True
            for point in entry_points(group=self.group):
                origin = f" (from {point.dist.name})" if point.dist else ""
                self._entries.setdefault(
                    point.name, Entry(target=point.value, summary=f"third party{origin}")
                )
        return dict(self._entries)

    def open(self, name: str) -> T:
        """Create the plug-in of this name. Raises the same errors as ``load``."""
        return self.load(name)()

    def load(self, name: str) -> type[T]:
        """Import the class of a plug-in.

        Raises UnknownNameError with the nearest names. Raises UsageError if a package is missing
        (naming the extra that installs it), or if a third party's class does not fit this version
        of iobench.
        """
        entry = self._entries.get(name) or self.entries().get(name)
        if entry is None:
            raise UnknownNameError(self.kind, name, self.entries())
        module, _, attribute = entry.target.partition(":")
        found = getattr(self._import(name, module), attribute, None)
        if found is None or (name not in self._builtins and not self._fits(found)):
            raise UsageError(
                f"{self.kind} '{name}': {entry.target} is not a plug-in for this version of "
                f"iobench: it does not subclass {self._base.replace(':', '.')}, or it lacks one of "
                "its methods",
                remedy="install a version of the plug-in that fits, or uninstall it",
            )
        return cast("type[T]", found)

    def _fits(self, found: object) -> bool:
        if not self._base:
            return True
        module, _, attribute = self._base.partition(":")
        base = getattr(importlib.import_module(module), attribute)
        return (
            isinstance(found, type)
            and issubclass(found, base)
            and not getattr(found, "__abstractmethods__", None)
        )

    def require(self, name: str, package: str) -> None:
        """Check that ``package``, which only a part of the plug-in needs, can be imported.

        Raises UsageError naming the extra that installs it.
        """
        self._import(name, package)

    def _import(self, name: str, module: str) -> ModuleType:
        try:
            return importlib.import_module(module)
        except Exception as error:
            broken, extra = self._broken(name, error), self.entries()[name].extra
            if broken is not None:
                reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
                installs = f", or install what it needs: {install_command(extra)}" if extra else ""
                raise UsageError(
                    f"{self.kind} '{name}': {broken} is installed, but cannot be imported: "
                    f"{reason}",
                    remedy=f"see its error with python -c 'import {broken}'{installs}",
                ) from error
            if not isinstance(error, ImportError):
                raise
            remedy = (
                f"install it: {install_command(extra)}"
                if extra
                else f"install the package that provides '{error.name}'"
            )
            raise UsageError(
                f"{self.kind} '{name}' needs the Python package '{error.name}'", remedy=remedy
            ) from error

    def _broken(self, name: str, error: Exception) -> str | None:
        """Return the package that is installed but failed to import.

        None if the package is not installed, or if the plug-in's own module failed with an error
        that is not an ImportError.
        """
        own = {
            __name__.partition(".")[0],
            self.entries()[name].target.partition(".")[0],
            "importlib",
        }
        packages = [
            str(frame.f_globals.get("__name__")).partition(".")[0]
            for frame, _ in walk_tb(error.__traceback__)
        ]
        if foreign := [package for package in packages if package not in own]:
            return foreign[0]
        if not isinstance(error, ImportError):
            return None
        if error.name is None:  # raised by the plug-in's own module, as an ImportError of its own
            return self.entries()[name].target.partition(":")[0]
        if not isinstance(error, ModuleNotFoundError):
            # The name to import is missing from the package: it is another version.
            return error.name.partition(".")[0]
        return None


class CodecRegistry(Registry["Codec"]):
    """Codecs, which are created with a level: ``open("zstd:3")`` is ``Zstd(level=3)``."""

    def open(self, name: str) -> Codec:
        """Create the codec of a specification: a name, or a name and a level.

        Raises the same errors as ``load``, and SpecError for a level that is not a number or that
        the codec does not have.
        """
        name, level = split_level(name)
        try:
            return self.load(name)(level)
        except ValueError as error:
            raise SpecError(str(error)) from None


def split_level(text: str) -> tuple[str, int | None]:
    """Split ``"zstd:3"`` to ("zstd", 3), and ``"zstd"`` to ("zstd", None).

    Raises SpecError for a level that is not a number.
    """
    name, colon, level = text.partition(":")
    if colon and not re.fullmatch(r"-?[0-9]{1,9}", level):
        raise SpecError(f"codec '{text}': the level after ':' must be a whole number")
    return name, int(level) if colon else None


FORMATS: Registry[Format] = Registry(
    "format",
    "iobench.formats",
    {
        "files": Entry(target="iobench.formats.files:Files", summary="one file per sample"),
        "tar": Entry(
            target="iobench.formats.tar:Tar",
            summary="POSIX tar shards, as the webdataset library reads them",
        ),
        "tfrecord": Entry(
            target="iobench.formats.tfrecord:TFRecord",
            summary="TFRecord shards of tf.train.Example, masked CRC32C",
        ),
        "tokens": Entry(
            target="iobench.formats.tokens:Tokens",
            summary="flat arrays of tokens, read in random windows",
        ),
        "parquet": Entry(
            target="iobench.formats.parquet:Parquet",
            summary="Parquet: row groups of columns, read by row group",
        ),
        "mds": Entry(
            target="iobench.formats.mds:Mds",
            summary="MDS shards and their index, as mosaicml-streaming reads them",
        ),
        "hdf5": Entry(
            target="iobench.formats.hdf5:Hdf5",
            summary="HDF5, one dataset per sample: contiguous or deflated",
            extra="hdf5",
        ),
        "lmdb": Entry(
            target="iobench.formats.lmdb:Lmdb",
            summary="LMDB, one entry per sample, read in random order",
            extra="lmdb",
        ),
    },
    base="iobench.formats.base:Format",
)

CONTENTS: Registry[Content] = Registry(
    "content",
    "iobench.contents",
    {
        "raw": Entry(
            target="iobench.contents.raw:Raw", summary="opaque bytes, unique and incompressible"
        ),
        "npz": Entry(
            target="iobench.contents.npz:Npz",
            summary="NumPy .npz (stored) holding one uint8 array 'x'",
        ),
        "arrays": Entry(
            target="iobench.contents.npz:Arrays",
            summary="any .npz: its arrays, inflated, one after another",
        ),
        "jpeg": Entry(
            target="iobench.contents.jpeg:Jpeg",
            summary="a JPEG that decodes, padded to the exact size",
        ),
    },
    base="iobench.contents.base:Content",
)

CODECS = CodecRegistry(
    "codec",
    "iobench.codecs",
    {
        "none": Entry(target="iobench.codecs.identity:Identity", summary="stored as is"),
        "gzip": Entry(target="iobench.codecs.gzip:Gzip", summary="gzip (RFC 1952), levels 1 to 9"),
        "zstd": Entry(
            target="iobench.codecs.zstd:Zstd", summary="Zstandard (RFC 8878), levels 1 to 22"
        ),
        "lz4": Entry(target="iobench.codecs.lz4:Lz4", summary="LZ4 frames, levels 0 to 16"),
    },
    base="iobench.codecs.base:Codec",
)

STORAGE: Registry[Storage] = Registry(
    "storage",
    "iobench.storage",
    {
        "file": Entry(
            target="iobench.storage.local.storage:LocalStorage",
            summary="a directory on a local disk or a mounted file system",
        ),
        "nfs": Entry(
            target="iobench.storage.nfs.storage:NfsStorage",
            summary="nfs://server/export/path: an NFS export without a mount (needs libnfs)",
        ),
        "s3": Entry(
            target="iobench.storage.s3.storage:S3Storage",
            summary="s3://bucket/prefix?endpoint=..&client=..: objects of an S3 server",
            extra="s3",
        ),
        "fsspec": Entry(
            target="iobench.storage.fsspec.url:FsspecStorage",
            summary="any other fsspec URL (gs://, az://, hf:// ...): compatible, not fast",
        ),
        "throttled": Entry(
            target="iobench.storage.simulated.throttled:ThrottledStorage",
            summary="throttled+URL?bandwidth=..&latency=..: storage of known speed",
        ),
        "faulty": Entry(
            target="iobench.storage.simulated.faulty:FaultyStorage",
            summary="faulty+URL?fail_every=N: errors, short reads, stalls",
        ),
    },
)

ACCELERATORS: Registry[Accelerator] = Registry(
    "accelerator",
    "iobench.accelerators",
    {
        "emulated": Entry(
            target="iobench.accelerate.emulated:EmulatedAccelerator",
            summary="each step takes the stated time, kept by deadlines",
        ),
        "null": Entry(
            target="iobench.accelerate.emulated:NullAccelerator",
            summary="takes batches as fast as they come",
        ),
        "recorded": Entry(
            target="iobench.accelerate.recorded:RecordedAccelerator",
            summary="each step takes the time that 'iobench record' found for a real model",
        ),
        "model": Entry(
            target="iobench.accelerate.model:ModelAccelerator",
            summary="trains a real model on each batch, on a CPU or a GPU",
        ),
    },
)

NETWORKS: Registry[Model] = Registry(
    "network",
    "iobench.networks",
    {
        "resnet18": Entry(
            target="iobench.accelerate.models.resnet:ResNet18",
            summary="ResNet-18, 11.7 million parameters, images of 224 x 224 pixels",
        ),
        "resnet50": Entry(
            target="iobench.accelerate.models.resnet:ResNet50",
            summary="ResNet-50, 25.6 million parameters, images of 224 x 224 pixels",
        ),
        "vit-s16": Entry(
            target="iobench.accelerate.models.vit:ViTS16",
            summary="ViT-S/16, 22.1 million parameters, images of 224 x 224 pixels",
        ),
        "vit-b16": Entry(
            target="iobench.accelerate.models.vit:ViTB16",
            summary="ViT-B/16, 86.6 million parameters, images of 224 x 224 pixels",
        ),
        "unet3d": Entry(
            target="iobench.accelerate.models.unet3d:UNet3D",
            summary="3D U-Net as in MLPerf, 31.2 million parameters, 128 x 128 x 128 voxels",
        ),
        "gpt2": Entry(
            target="iobench.accelerate.models.gpt2:GPT2",
            summary="GPT-2, 124 million parameters, windows of 1,024 tokens of 16 bits",
        ),
    },
)

WRITERS: Registry[CheckpointWriter] = Registry(
    "writer",
    "iobench.writers",
    {
        "torch": Entry(
            target="iobench.checkpoint.torch_save:TorchSave",
            summary="torch.save, one file per rank",
        ),
        "torch-async": Entry(
            target="iobench.checkpoint.torch_save:TorchSaveBehind",
            summary="torch.save of a copy, written by a thread",
        ),
        "torch-nocrc": Entry(
            target="iobench.checkpoint.torch_save:TorchSaveNoCrc",
            summary="torch.save without its CRC32",
        ),
        "safetensors": Entry(
            target="iobench.checkpoint.safetensors_file:Safetensors",
            summary="safetensors, one file per rank",
            extra="checkpoint",
        ),
        "safetensors-async": Entry(
            target="iobench.checkpoint.safetensors_file:SafetensorsBehind",
            summary="safetensors of a copy, written by a thread",
            extra="checkpoint",
        ),
        "dcp": Entry(
            target="iobench.checkpoint.dcp:Dcp",
            summary="torch.distributed.checkpoint: any world size can read it",
        ),
        "dcp-async": Entry(
            target="iobench.checkpoint.dcp_async:DcpThread",
            summary="dcp of a copy, written by a thread",
        ),
        "dcp-async-process": Entry(
            target="iobench.checkpoint.dcp_async:DcpProcess",
            summary="dcp of a copy, written by a process",
        ),
        "stream": Entry(
            target="iobench.checkpoint.stream:Stream",
            summary="parallel O_DIRECT, or S3 parts, straight from the tensors",
        ),
        "stream-async": Entry(
            target="iobench.checkpoint.stream:StreamBehind",
            summary="stream of a copy, written by a thread",
        ),
    },
)

_LIBRARIES = "iobench.load.libraries"

LOADERS: Registry[Library | BatchLoader | UserLoader] = Registry(
    "loader",
    "iobench.loaders",
    {
        "iobench": Entry(
            target="iobench.load.loader:BatchLoader",
            summary="iobench's own readers in torch's DataLoader",
        ),
        "user": Entry(
            target="iobench.load.user.loader:UserLoader",
            summary="your own loader, made by loader.factory (run --loader module:function)",
        ),
        "torch-map": Entry(
            target=f"{_LIBRARIES}.torch_map:TorchMap",
            summary="a map-style torch Dataset: a file read for each sample",
        ),
        "torch-iterable": Entry(
            target=f"{_LIBRARIES}.torch_iterable:TorchIterable",
            summary="an iterable torch Dataset: shards streamed front to back",
        ),
        "webdataset": Entry(
            target=f"{_LIBRARIES}.wds:WebDataset",
            summary="webdataset over tar shards",
            extra="webdataset",
        ),
        "hf-datasets": Entry(
            target=f"{_LIBRARIES}.hf_datasets:HFDatasets",
            summary="Hugging Face datasets, streaming Parquet",
            extra="hf-datasets",
        ),
        "litdata": Entry(
            target=f"{_LIBRARIES}.lit:LitData",
            summary="litdata over chunks of its own layout",
            extra="litdata",
        ),
        "mosaicml-streaming": Entry(
            target=f"{_LIBRARIES}.mosaic:Mosaic",
            summary="mosaicml-streaming over MDS shards",
            extra="mosaicml-streaming",
        ),
        "torchdata": Entry(
            target=f"{_LIBRARIES}.nodes:TorchDataNodes",
            summary="torchdata.nodes: threads read samples",
            extra="torchdata",
        ),
        "spdl": Entry(
            target=f"{_LIBRARIES}.spdl_pipeline:Spdl",
            summary="SPDL: a pipeline of threads reads batches",
            extra="spdl",
        ),
        "grain": Entry(
            target=f"{_LIBRARIES}.grain_dataset:Grain",
            summary="grain: threads read a shuffled map-style dataset",
            extra="grain",
        ),
    },
    base=f"{_LIBRARIES}.base:Library",
)

ALL: dict[str, Registry[object]] = {
    r.kind: r
    for r in (FORMATS, CONTENTS, CODECS, STORAGE, ACCELERATORS, NETWORKS, LOADERS, WRITERS)
}

"""The specification of a dataset: number and sizes of samples, format, content, codec and seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Literal

from pydantic import Field, model_validator

from ..base.errors import SpecError
from ..base.units import format_bytes
from ..plugins import third_parties
from .base import Bytes, Strict, build, read_spec

MIN_SAMPLE_BYTES = 1

MAX_SAMPLES = 10**10

DEFAULT_SHARD_BYTES = 64 << 20
"""Shard size of a format with many samples per shard, if the spec does not state one."""

ONE_FILE_EACH = "files"
"""The format with one file per sample; ``format: npz`` is short for it with npz content."""

CONTENTS = ("raw", "npz", "arrays", "jpeg")
"""Names of iobench's own contents: those in the table of ``iobench.data.contents``."""

SHARD_KEYS = ("shard_size", "samples_per_shard")
"""Keys of a DatasetSpec that say how samples are divided into shards."""

_OF_SOME_FORMATS = ("block_size", "columns", "labels", "files_per_directory")

FOLDER_KEYS = ("files_per_directory",)
"""Keys of a DatasetSpec that say how files of one sample each are divided into directories."""

BLOCK_KEYS = ("block_size", "columns")
"""Keys of a DatasetSpec that say how shards are divided into blocks and columns."""

_PARAMETERS = {
    "constant": ("mean",),
    "normal": ("mean", "stdev"),
    "lognormal": ("mean", "sigma"),
    "quantiles": ("quantiles",),
}


class SampleSize(Strict):
    """Distribution of the bytes of one sample before the codec (the size of its file or record).

    ``distribution``: ``constant`` takes ``mean`` in bytes. ``normal`` takes ``mean`` and ``stdev``
    in bytes, as the MLPerf Storage rules do. ``lognormal`` takes ``mean`` in bytes and ``sigma``,
    the standard deviation of the logarithm. ``quantiles`` is an empirical distribution, linear
    between (probability, bytes) points. Sizes outside [``min``, ``max``] are clipped; ``min``
    defaults to 1 byte and ``max`` to four times the mean.
    """

    distribution: Literal["constant", "normal", "lognormal", "quantiles"] = "constant"
    mean: Bytes | None = Field(default=None, ge=MIN_SAMPLE_BYTES)
    stdev: Bytes | None = None
    sigma: float | None = Field(default=None, gt=0, le=4)
    min: Bytes | None = Field(default=None, ge=MIN_SAMPLE_BYTES)
    max: Bytes | None = Field(default=None, ge=MIN_SAMPLE_BYTES)
    quantiles: tuple[tuple[float, Bytes], ...] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> SampleSize:
        needs = _PARAMETERS[self.distribution]
        for key in needs:
            if getattr(self, key) is None:
                raise ValueError(f"distribution '{self.distribution}' needs '{key}'")
        for key in ("mean", "stdev", "sigma", "quantiles"):
            if key not in needs and getattr(self, key) is not None:
                raise ValueError(
                    f"distribution '{self.distribution}' has no '{key}': "
                    "remove it, or choose another distribution"
                )
        if self.quantiles is not None:
            points = [p for p, _ in self.quantiles]
            sizes = [b for _, b in self.quantiles]
            if (
                not all(map(math.isfinite, points))
                or len(points) < 2
                or points[0] != 0
                or points[-1] != 1
                or sorted(points) != points
                or sorted(sizes) != sizes
            ):
                raise ValueError(
                    "quantiles must rise from probability 0 to 1, and their sizes must rise too"
                )
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min ({self.min}) is above max ({self.max})")
        if self.mean is not None and not (self.min or self.mean) <= self.mean <= (
            self.max or self.mean
        ):
            raise ValueError(
                f"mean ({self.mean}) is outside [min, max], to which draws are clipped"
            )
        return self

    @property
    def mean_bytes(self) -> float:
        """Expected bytes per sample, without the effect of clipping."""
        if self.quantiles is not None:
            pairs = zip(self.quantiles, self.quantiles[1:], strict=False)
            return sum((p1 - p0) * (b0 + b1) / 2 for (p0, b0), (p1, b1) in pairs)
        assert self.mean is not None
        return float(self.mean)


class DatasetSpec(Strict):
    """A dataset to generate.

    ``format`` (the container), ``content`` (the encoding of one sample) and ``codec`` are
    independent of each other; ``iobench list`` has their names. ``samples``: how many there are, of
    ``sample_size``. A shard ends at ``shard_size`` bytes or after ``samples_per_shard``; None: 64
    MiB, where the format has many samples in a shard. ``compress_ratio``: bytes of a sample over
    those that a codec could make of them; 1: incompressible. ``seed``: of sizes and bytes. Two
    keys are only for formats that store blocks of columns (Parquet): ``block_size`` is
    the largest size of a block (row group) in bytes of samples, unless a single sample is larger;
    ``columns`` is the number of columns over which each sample's bytes are split. ``labels`` is the
    number of classes, for formats and contents that have labels: sample i is of class i modulo
    ``labels``, its content shows its class, and the format states it (a folder for each class, or a
    member ``cls`` of the sample). None: no labels. ``files_per_directory`` is for formats with one
    file for each sample: how many of them lie in one directory (None: 1,000).
    """

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    source: str = ""
    samples: int = Field(ge=1, le=MAX_SAMPLES)
    sample_size: SampleSize
    format: str = ONE_FILE_EACH
    content: str = "raw"
    codec: str = "none"
    shard_size: Bytes | None = Field(default=None, ge=1)
    samples_per_shard: int | None = Field(default=None, ge=1)
    block_size: Bytes | None = Field(default=None, ge=1, le=1 << 30)
    columns: int | None = Field(default=None, ge=1, le=10_000)
    compress_ratio: float = Field(default=1.0, ge=1, le=1000)
    seed: int = Field(default=1, ge=0, lt=2**63)
    labels: int | None = Field(default=None, ge=2, le=10_000)
    files_per_directory: int | None = Field(default=None, ge=1, le=MAX_SAMPLES)

    @model_validator(mode="before")
    @classmethod
    def _content_as_format(cls, data: object) -> object:
        """Replace ``format: npz``, which is short for ``format: files, content: npz``."""
        if (
            isinstance(data, dict)
            and isinstance(data.get("format"), str)
            and is_content(data["format"])
        ):
            data = {**data, "content": data["format"], "format": ONE_FILE_EACH}
        return data

    @model_validator(mode="after")
    def _one_way_to_cut_shards(self) -> DatasetSpec:
        if self.shard_size is not None and self.samples_per_shard is not None:
            raise ValueError("set shard_size or samples_per_shard, not both")
        return self

    @property
    def states_blocks(self) -> bool:
        """Whether it says how shards are divided into blocks, so that they are read by blocks.

        Only the format's plug-in knows whether others are.
        """
        return any(getattr(self, key) is not None for key in BLOCK_KEYS)

    @property
    def shards_unsaid(self) -> bool:
        """Whether only the format's plug-in knows how samples are divided into shards."""
        return (
            self.format != ONE_FILE_EACH
            and self.shard_size is None
            and self.samples_per_shard is None
        )

    @property
    def nominal_bytes(self) -> int:
        """Expected bytes of all samples before the codec."""
        return round(self.samples * self.sample_size.mean_bytes)

    def identity(self) -> dict[str, object]:
        """Return the keys that determine the dataset's bytes: all but the descriptions.

        Specs with equal identities generate equal datasets.
        """
        everything = self.model_dump(mode="json", exclude={"description", "source"})
        # What only some formats have is left out where it is not set.
        return {
            key: value
            for key, value in everything.items()
            if value is not None or key not in _OF_SOME_FORMATS
        }


def load_dataset_spec(
    name: str,
    overrides: Sequence[str] = (),
    *,
    without: Callable[[object], Collection[str]] | None = None,
) -> DatasetSpec:
    """Load a dataset spec by name or path, with ``a.b=c`` overrides.

    If an override sets the format, ``without(format)`` returns the keys that a spec of that format
    cannot have. They are removed from the file's content, so that it is enough to give the format
    on the command line. ``iobench.data.dataset.load_dataset_spec`` passes this function. Raises
    SpecError, UnknownNameError.
    """
    changed, where = read_spec("dataset", name, overrides)
    # shard_size on the command line replaces the file's samples_per_shard, and vice versa.
    keys = {o.partition("=")[0].strip() for o in overrides}
    for chosen, other in (("shard_size", "samples_per_shard"), ("samples_per_shard", "shard_size")):
        if chosen in keys and other not in keys:
            changed.pop(other, None)
    if "format" in keys and without is not None:
        for key in set(without(changed.get("format"))) - keys:
            changed.pop(key, None)
    # A distribution on the command line removes the parameters that it does not have, unless they
    # were given on the command line, too.
    sizes = changed.get("sample_size")
    if (
        "sample_size.distribution" in keys
        and isinstance(sizes, dict)
        and sizes.get("distribution") in _PARAMETERS
    ):
        for key in {"mean", "stdev", "sigma", "quantiles"} - {*_PARAMETERS[sizes["distribution"]]}:
            if f"sample_size.{key}" not in keys:
                sizes.pop(key, None)
    return build(DatasetSpec, changed, where=where)


def is_content(name: str) -> bool:
    """Whether a content has this name, which is then short for one file of it for each sample."""
    return name in CONTENTS or name in third_parties("iobench.data.contents")


def in_columns(spec: DatasetSpec) -> bool:
    """Return whether each sample is split into several columns."""
    return (spec.columns or 1) > 1


def share_of_columns(spec: DatasetSpec, columns: int | None) -> float:
    """Return the share of a sample's bytes in its first ``columns`` columns, 0 to 1.

    It is 1 if all columns are read or the format has none. A sample's bytes are split evenly; if
    that leaves a remainder, the first columns get one byte more.
    """
    if columns is None or spec.columns is None or columns >= spec.columns:
        return 1.0
    size = round(spec.sample_size.mean_bytes)
    each, more = divmod(size, spec.columns)
    return (columns * each + min(columns, more)) / size


def expected_stored_bytes(spec: DatasetSpec) -> float:
    """Return the mean stored bytes of one sample, without framing.

    The codec is assumed to reach the spec's ``compress_ratio``.
    """
    return spec.sample_size.mean_bytes / (1.0 if spec.codec == "none" else spec.compress_ratio)


def expected_samples_per_shard(spec: DatasetSpec) -> float:
    """Return the mean number of samples in one shard.

    For a plug-in's format with one sample per shard, pass the spec through
    ``iobench.data.dataset.with_shards_stated`` first.
    """
    if spec.format == ONE_FILE_EACH:
        return 1.0
    cut = spec.samples_per_shard or max(
        1.0, (spec.shard_size or DEFAULT_SHARD_BYTES) / spec.sample_size.mean_bytes
    )
    return float(min(cut, spec.samples))


def resized(
    spec: DatasetSpec, *, samples: int | None = None, size_bytes: int | None = None
) -> DatasetSpec:
    """Return the same spec with another number of samples, given directly or as total bytes.

    Raises SpecError if both are given, if not even one sample fits, or if too many do.
    """
    if samples is not None and size_bytes is not None:
        raise SpecError("give a number of samples or a size, not both")
    if size_bytes is not None:
        samples = int(size_bytes // spec.sample_size.mean_bytes)
        if samples < 1:
            raise SpecError(
                f"a size of {size_bytes} bytes is too small for one sample, which has "
                f"{spec.sample_size.mean_bytes:.0f} bytes on average",
                remedy="ask for a larger size",
            )
        if samples > MAX_SAMPLES:
            raise SpecError(
                f"a size of {format_bytes(size_bytes)} has {samples:,} samples, and a dataset has "
                f"at most {MAX_SAMPLES:,}",
                remedy="ask for a smaller size",
            )
    if samples is None:
        return spec
    return build(
        DatasetSpec,
        {**spec.model_dump(mode="json"), "samples": samples},
        where=f"dataset '{spec.name}'",
    )

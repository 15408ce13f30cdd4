"""What the bytes look like: how many samples, how large, in which format, content and codec, from which seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from ..errors import SpecError
from ..registry import CONTENTS
from .base import Bytes, Strict, apply_overrides, build, find_spec
from .yamlfile import read_yaml

MIN_SAMPLE_BYTES = 1

DEFAULT_SHARD_BYTES = 64 << 20
"""Of formats with many samples in a shard, where a spec does not say how to cut them."""

ONE_FILE_EACH = "files"
"""The format of one file per sample, for which ``format: npz`` is short, too."""

SHARD_KEYS = ("shard_size", "samples_per_shard")
"""Of a DatasetSpec: how samples are cut into shards."""

BLOCK_KEYS = ("block_size", "columns")
"""Of a DatasetSpec: how shards are cut into blocks and columns."""

_PARAMETERS = {
    "constant": ("mean",),
    "normal": ("mean", "stdev"),
    "lognormal": ("mean", "sigma"),
    "quantiles": ("quantiles",),
}


class SampleSize(Strict):
    """Distribution of the bytes of one sample before the codec (the file's or the record's own size).

    ``normal`` takes mean and stdev in bytes (as the MLPerf Storage rules do); ``lognormal`` takes mean in bytes and sigma, the standard
    deviation of the logarithm; ``quantiles`` is an empirical distribution, linear between (probability, bytes) points.
    Draws outside [min, max] are clipped; min defaults to 1 byte and max to four means.
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
                    f"distribution '{self.distribution}' has no '{key}': remove it, or choose the distribution that you mean"
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
                    "quantiles must rise from probability 0 to probability 1, sizes with them"
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
        """Expected bytes per sample (clipping left aside)."""
        if self.quantiles is not None:
            pairs = zip(self.quantiles, self.quantiles[1:], strict=False)
            return sum((p1 - p0) * (b0 + b1) / 2 for (p0, b0), (p1, b1) in pairs)
        assert self.mean is not None
        return float(self.mean)


class DatasetSpec(Strict):
    """A dataset to generate. Format (container), content (one sample's encoding) and codec are independent of one another.

    For formats that store blocks of columns (Parquet): ``block_size`` is how many bytes of samples a block (row group) holds at most, if
    not a single one is larger; ``columns`` is how many columns each sample's bytes are split over. Other formats have neither.
    """

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    source: str = ""
    samples: int = Field(ge=1, le=10**10)
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

    @model_validator(mode="before")
    @classmethod
    def _content_as_format(cls, data: Any) -> Any:
        """``format: npz`` is short for one npz file per sample: ``format: files, content: npz``."""
        if (
            isinstance(data, dict)
            and isinstance(data.get("format"), str)
            and data["format"] in CONTENTS.entries()
        ):
            data = {**data, "content": data["format"], "format": ONE_FILE_EACH}
        return data

    @model_validator(mode="after")
    def _one_way_to_cut_shards(self) -> DatasetSpec:
        if self.shard_size is not None and self.samples_per_shard is not None:
            raise ValueError("set shard_size or samples_per_shard, not both")
        return self

    @property
    def shards_unsaid(self) -> bool:
        """Whether only the format's plug-in can tell how samples are cut into shards."""
        return (
            self.format != ONE_FILE_EACH
            and self.shard_size is None
            and self.samples_per_shard is None
        )

    @property
    def nominal_bytes(self) -> int:
        """Expected bytes of all samples before the codec."""
        return round(self.samples * self.sample_size.mean_bytes)

    def identity(self) -> dict[str, Any]:
        """What decides the bytes: everything but the prose. Equal identities generate equal datasets."""
        everything = self.model_dump(mode="json", exclude={"description", "source"})
        # A key that came later must not change what older datasets are.
        return {
            key: value
            for key, value in everything.items()
            if value is not None or key not in ("block_size", "columns")
        }


def load_dataset_spec(
    name: str,
    overrides: Sequence[str] = (),
    *,
    without: Callable[[object], Collection[str]] | None = None,
) -> DatasetSpec:
    """A dataset spec by name or path, with ``a.b=c`` overrides.

    Where an override chooses the format, ``without`` says which keys a spec with that format can't
    have. Those of the file are left out, so that saying the format on the command line is enough.
    ``iobench.dataset.load_dataset_spec`` gives it.
    """
    path = find_spec("dataset", name)
    data = read_yaml(path)
    changed = apply_overrides(data, overrides)
    # Choosing one way to cut shards on the command line replaces the file's way.
    keys = {o.partition("=")[0].strip() for o in overrides}
    for chosen, other in (("shard_size", "samples_per_shard"), ("samples_per_shard", "shard_size")):
        if chosen in keys and other not in keys:
            changed.pop(other, None)
    if "format" in keys and without is not None:
        for key in set(without(changed.get("format"))) - keys:
            changed.pop(key, None)
    # So does choosing another distribution: parameters that it does not have go, unless they were given too.
    sizes = changed.get("sample_size")
    if (
        "sample_size.distribution" in keys
        and isinstance(sizes, dict)
        and sizes.get("distribution") in _PARAMETERS
    ):
        for key in {"mean", "stdev", "sigma", "quantiles"} - {*_PARAMETERS[sizes["distribution"]]}:
            if f"sample_size.{key}" not in keys:
                sizes.pop(key, None)
    return build(
        DatasetSpec, changed, where=str(path) if path.stem != name else f"dataset '{name}'"
    )


def in_columns(spec: DatasetSpec) -> bool:
    """Whether each sample is cut into several columns."""
    return (spec.columns or 1) > 1


def share_of_columns(spec: DatasetSpec, columns: int | None) -> float:
    """The share of a sample's bytes that lies in its first ``columns`` columns; 1 where all are read, or the format has none.

    A sample's bytes are split as evenly as can be, and the first columns get one more where they do not divide.
    """
    if columns is None or spec.columns is None or columns >= spec.columns:
        return 1.0
    size = round(spec.sample_size.mean_bytes)
    each, more = divmod(size, spec.columns)
    return (columns * each + min(columns, more)) / size


def expected_stored_bytes(spec: DatasetSpec) -> float:
    """Bytes of one sample as stored, on average; framing left aside, and the codec assumed to reach the spec's ``compress_ratio``."""
    return spec.sample_size.mean_bytes / (1.0 if spec.codec == "none" else spec.compress_ratio)


def expected_samples_per_shard(spec: DatasetSpec) -> float:
    """Samples in one shard, on average.

    Of a third party's format with one sample in each shard, ``iobench.dataset.with_shards_stated``
    makes a spec that says so.
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
    """The same dataset with another sample count, given directly or as total bytes."""
    if samples is not None and size_bytes is not None:
        raise SpecError("give --samples or a size, not both")
    if size_bytes is not None:
        samples = int(size_bytes // spec.sample_size.mean_bytes)
        if samples < 1:
            raise SpecError(
                f"{size_bytes} bytes hold no sample of {spec.sample_size.mean_bytes:.0f} bytes on average",
                remedy="ask for a larger size",
            )
    if samples is None:
        return spec
    return build(
        DatasetSpec,
        {**spec.model_dump(mode="json"), "samples": samples},
        where=f"dataset '{spec.name}'",
    )

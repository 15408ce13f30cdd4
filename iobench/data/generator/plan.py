"""The plan of a dataset: each sample's size, its shard, and the units of work.

All are pure functions of the spec.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...base.errors import SpecError
from ...base.payload import mix64
from ...settings.dataset import DEFAULT_SHARD_BYTES, DatasetSpec, SampleSize
from ..codecs import CODECS
from ..contents import CONTENTS
from ..dataset import ResolvedSpec
from ..formats import FORMATS
from ..formats.base import Blocks, Format

_UNIT_BYTES = 64 << 20
_UNIT_SHARDS = 1000
_SIZES_SALT = 0x73697A6573  # sizes and payload keys must be drawn from different streams

_PART_SAMPLES = 1 << 20
"""Number of samples whose sizes ``ShardNumbers`` draws at once."""

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardPlan:
    """Assigns samples to shards, and shards to units of work.

    The samples of a shard, and the shards of a unit, are consecutive.
    """

    sizes: Int64  # [samples], bytes before the codec
    first: Int64  # [shards + 1]: shard s holds samples first[s] .. first[s + 1] - 1
    units: Int64  # [units + 1]: unit u holds shards units[u] .. units[u + 1] - 1

    @property
    def sample_count(self) -> int:
        return len(self.sizes)

    @property
    def shard_count(self) -> int:
        return len(self.first) - 1

    @property
    def unit_count(self) -> int:
        return len(self.units) - 1

    @property
    def sample_bytes(self) -> int:
        return _total(self.sizes)

    def unit_bytes(self) -> Int64:
        """Bytes of samples in each unit, before the codec."""
        result: Int64 = np.diff(_ends(self.sizes, self.first[self.units]))
        return result


def plan_shards(spec: DatasetSpec) -> ShardPlan:
    """Make the plan of a spec, after checking that its parts fit together.

    ``shard_size`` counts the samples' own bytes: a shard takes every sample that starts within its
    window of that many bytes, so a shard differs from that size by less than one sample, whatever
    the codec. Raises SpecError (and UnknownNameError for a plug-in's name).
    """
    form = check_spec(spec)
    sizes = sample_sizes(spec)
    if form.one_sample_per_shard:
        first = np.arange(len(sizes) + 1, dtype=np.int64)
    elif spec.samples_per_shard is not None:
        first = np.append(
            np.arange(0, len(sizes), spec.samples_per_shard, dtype=np.int64), len(sizes)
        )
    elif sizes.strides == (0,):
        first = _even_boundaries(int(sizes[0]), len(sizes), spec.shard_size or DEFAULT_SHARD_BYTES)
    else:
        first = _boundaries((np.cumsum(sizes) - sizes) // (spec.shard_size or DEFAULT_SHARD_BYTES))
    shard_starts = _ends(sizes, first[:-1])
    shards = np.arange(len(shard_starts), dtype=np.int64)
    # Either number changes where a unit ends; both only increase, so their sum changes with either.
    units = _boundaries(shard_starts // _UNIT_BYTES + shards // _UNIT_SHARDS)
    return ShardPlan(sizes=sizes, first=first, units=units)


def check_spec(spec: DatasetSpec) -> Format:
    """Check names, codec level, and what content and format support; return the spec's format.

    Raises SpecError, UnknownNameError.
    """
    form = FORMATS.open(spec.format)
    content = CONTENTS.open(spec.content)
    where = f"dataset '{spec.name}'"
    if spec.labels is not None:
        labelled = ResolvedSpec.of(spec)
        form, content = labelled.format, labelled.content
    try:
        codec = CODECS.open(spec.codec)
        content.build(
            memoryview(bytearray(max(content.min_bytes, 64))),
            seed=spec.seed,
            index=0,
            compress_ratio=spec.compress_ratio,
        )
        form.check_spec(spec, codec)
    except SpecError as error:
        raise SpecError(f"{where}: {error.what}") from None
    except ValueError as error:
        raise SpecError(f"{where}: {error}") from None
    for key in ("block_size", "columns"):
        if getattr(spec, key) is not None and not isinstance(form, Blocks):
            raise SpecError(
                f"{where}: format '{spec.format}' has no {key}", remedy=f"add --set {key}=null"
            )
    if form.one_sample_per_shard:
        for key in ("shard_size", "samples_per_shard"):
            if getattr(spec, key) not in (None, 1 if key == "samples_per_shard" else None):
                raise SpecError(
                    f"{where}: format '{spec.format}' is one sample per file and has no {key}",
                    remedy=f"add --set {key}=null",
                )
    elif spec.files_per_directory is not None:
        raise SpecError(
            f"{where}: files_per_directory is for one file for each sample, and format "
            f"'{spec.format}' has shards",
            remedy="add --set files_per_directory=null",
        )
    size = spec.sample_size
    stated = {
        "mean": size.mean if size.distribution == "constant" else None,
        "min": size.min,
        "max": size.max,
    }
    for key, value in stated.items():
        if value is not None and value < content.min_bytes:
            raise SpecError(
                f"{where}: sample_size.{key} is {value} bytes, content '{spec.content}' needs at "
                f"least {content.min_bytes}"
            )
    return form


def sample_sizes(spec: DatasetSpec) -> Int64:
    """Bytes of every sample before the codec.

    Sample i's size depends only on (seed, i, distribution), so a dataset of more samples begins
    with the same sizes.
    """
    if spec.sample_size.distribution == "constant":
        # Store one number, broadcast to all samples: there may be billions of them.
        least, most = _limits(spec)
        size = min(max(round(spec.sample_size.mean_bytes), least), most)
        return np.broadcast_to(np.int64(size), (spec.samples,))
    return _drawn_sizes(spec, 0, spec.samples)


def _drawn_sizes(spec: DatasetSpec, start: int, stop: int) -> Int64:
    """Sizes of the samples ``start`` to ``stop`` - 1, for a distribution that is not constant."""
    least, most = _limits(spec)
    drawn = _draw(spec.sample_size, spec.seed, np.arange(start, stop, dtype=np.uint64))
    result: Int64 = np.clip(np.rint(drawn), least, most).astype(np.int64)
    return result


def _limits(spec: DatasetSpec) -> tuple[int, int]:
    """(smallest, largest) allowed size of a sample, in bytes."""
    size = spec.sample_size
    least = max(1, CONTENTS.open(spec.content).min_bytes, size.min or 0)
    top = size.quantiles[-1][1] if size.quantiles else round(4 * size.mean_bytes)
    return least, size.max if size.max is not None else max(top, least)


class ShardNumbers:
    """The shard numbers of a spec: ``number in ShardNumbers(spec)``.

    It needs no table of all samples: if sizes differ, they are drawn in parts, up to the shard in
    question.
    """

    def __init__(self, spec: DatasetSpec) -> None:
        """Raises SpecError and UnknownNameError, like ``check_spec``."""
        self._spec = spec
        self._window = spec.shard_size or DEFAULT_SHARD_BYTES
        # The samples drawn so far, their bytes, their shards, and the last shard's window.
        self._drawn = self._bytes = self._count = 0
        self._group = -1
        self._known: int | None = None
        if check_spec(spec).one_sample_per_shard:
            self._known = spec.samples
        elif spec.samples_per_shard is not None:
            self._known = -(-spec.samples // spec.samples_per_shard)
        elif spec.sample_size.distribution == "constant":
            size = int(sample_sizes(spec)[0])
            self._known = (
                spec.samples
                if size >= self._window
                else (spec.samples - 1) * size // self._window + 1
            )

    def __contains__(self, number: int) -> bool:
        if self._known is not None:
            return 0 <= number < self._known
        while self._count <= number < self._spec.samples and self._drawn < self._spec.samples:
            self._draw_more()
        return 0 <= number < self._count

    def _draw_more(self) -> None:
        stop = min(self._drawn + _PART_SAMPLES, self._spec.samples)
        sizes = _drawn_sizes(self._spec, self._drawn, stop)
        starts = self._bytes + np.cumsum(sizes) - sizes
        groups = np.concatenate(([self._group], starts // self._window))
        self._count += int(np.count_nonzero(np.diff(groups)))
        self._group, self._drawn = int(groups[-1]), stop
        self._bytes += int(sizes.sum())


def _draw(size: SampleSize, seed: int, index: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    if size.quantiles is not None:
        points, values = zip(*size.quantiles, strict=True)
        return np.asarray(np.interp(_uniform(seed, index, 0), points, values), dtype=np.float64)
    # Box-Muller on counters has no state, so any worker (or a resumed run) can draw any range.
    radius = np.sqrt(-2 * np.log(1 - _uniform(seed, index, 0)))
    normal = radius * np.cos(2 * np.pi * _uniform(seed, index, 1))
    mean = size.mean_bytes
    if size.distribution == "normal":
        return np.asarray(mean + (size.stdev or 0) * normal, dtype=np.float64)
    sigma = size.sigma or 0.0
    # The location parameter that gives the log-normal distribution this mean.
    return np.asarray(np.exp(np.log(mean) - sigma**2 / 2 + sigma * normal), dtype=np.float64)


def _uniform(seed: int, index: npt.NDArray[np.uint64], stream: int) -> npt.NDArray[np.float64]:
    """Uniform numbers in [0, 1) of 53 bits, one for each index."""
    salt = mix64(np.array([seed ^ _SIZES_SALT], dtype=np.uint64))
    words = mix64(mix64(index << np.uint64(1) | np.uint64(stream)) ^ salt)
    return np.asarray((words >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def _total(sizes: Int64) -> int:
    return int(sizes[0]) * len(sizes) if sizes.strides == (0,) else int(sizes.sum())


def _ends(sizes: Int64, counts: Int64) -> Int64:
    """Bytes of the first ``count`` samples, for each ``count`` of ``counts``."""
    if sizes.strides == (0,):
        return np.asarray(sizes[0] * counts)
    return np.asarray(np.concatenate(([0], np.cumsum(sizes)))[counts])


def _even_boundaries(size: int, samples: int, window: int) -> Int64:
    """``_boundaries`` for samples of one size: the first sample that starts in each window.

    A sample of at least ``window`` bytes has a shard of its own (some windows contain no start).
    """
    if size >= window:
        return np.arange(samples + 1, dtype=np.int64)
    windows = np.arange((samples - 1) * size // window + 1, dtype=np.int64)
    return np.append(-(-windows * window // size), samples)


def _boundaries(group: Int64) -> Int64:
    """Positions at which a rising sequence of group numbers changes, with both ends."""
    changes = np.flatnonzero(np.diff(group)) + 1
    return np.concatenate(([0], changes, [len(group)])).astype(np.int64)

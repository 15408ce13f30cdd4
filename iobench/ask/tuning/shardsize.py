"""Recommend a shard size, and say whether a codec is worth its cost.

One stream fetches a shard of b bytes in ``t(b) = L + b / beta``; k streams reach
``X(b) = min(BW, k b / (L + b / beta))`` (Little's law). A shard of ``beta L e / (1 - e)`` bytes
reaches the share e of the highest rate. The model is fitted to two sizes and checked on others. It
holds if each shard is fetched by one stream that does nothing else meanwhile, and L does not grow
with k. Reads of parts of shards, or several requests for each shard, appear as a smaller L. It is
derived in the project's ecosystem notes, 2.10; webdataset's maintainers say "download within a few
seconds, several shards per worker".

A codec is worth its cost only if the cores decompress faster than storage delivers uncompressed
bytes. If reading and decompressing overlap, the rate with compression ratio r is
``min(r BW, cores D)`` uncompressed bytes/s, and ``BW`` without a codec. So compress only if
``cores D > BW`` and r > 1 (ecosystem notes 4.3). D is taken from the prep ceiling. It therefore
includes decoding and collating, as these cores really do them. The rule holds if storage is the
limit without the codec, and the training leaves the cores to the loader.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...judge.judged import judge
from ...judge.statistics import NOISE
from .points import SweptPoint, plain_bytes_per_sample

EFFICIENCY = 0.95
MAX_ERROR = 0.15
"""Largest relative error on a size outside the fit for which the model is trusted."""

SHARDS_PER_STREAM = 4
MEMORY_SHARE = 0.25
FIRST_BATCH_S = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The fitted model. ``streams`` fetch at once; bytes/s are of one stream, ``cap`` is of all."""

    latency_s: float
    bytes_per_s: float
    streams: int
    cap: float | None
    fitted: tuple[float, float]  # the two sizes
    # for each other size: predicted / measured - 1
    errors: Mapping[float, float] = field(default_factory=dict)

    def rate(self, shard_bytes: float) -> float:
        """Bytes/s of all streams with shards of this size."""
        alone = self.streams * shard_bytes / (self.latency_s + shard_bytes / self.bytes_per_s)
        return alone if self.cap is None else min(self.cap, alone)

    @property
    def worst(self) -> float | None:
        """The largest error in magnitude on a size outside the fit; None without such sizes."""
        return max(self.errors.values(), key=abs, default=None)

    @property
    def trusted(self) -> bool:
        return self.worst is not None and abs(self.worst) <= MAX_ERROR

    def max_rate(self, needed: float | None = None) -> float:
        """The largest useful rate: that of all streams, limited by ``cap`` and ``needed``."""
        known = [limit for limit in (self.cap, needed) if limit is not None]
        return min([self.streams * self.bytes_per_s, *known])

    def efficient_bytes(self, needed: float | None = None) -> float:
        """The smallest shard that reaches 95 % of ``max_rate``.

        It is smaller if the streams together are faster than ``max_rate``.
        """
        wanted = EFFICIENCY * self.max_rate(needed)
        return wanted * self.latency_s / (self.streams - wanted / self.bytes_per_s)


def fit(rates: Mapping[float, float], *, streams: int, cap: float | None = None) -> Fit | None:
    """Fit the model to ``rates``, which maps shard bytes to bytes/s of all streams.

    The fit uses the smallest and the largest size whose rate is below the cap; the errors are those
    on all other sizes. The result is None if fewer than two sizes are below the cap, or if the
    larger shard does not take longer than the smaller one.
    """
    below = sorted(size for size, rate in rates.items() if cap is None or rate < EFFICIENCY * cap)
    if len(below) < 2:
        return None
    small, large = below[0], below[-1]
    took = {size: streams * size / rates[size] for size in (small, large)}
    slope = (took[large] - took[small]) / (large - small)
    if slope <= 0:
        return None
    latency = max(0.0, took[small] - slope * small)
    found = Fit(
        latency_s=latency, bytes_per_s=1 / slope, streams=streams, cap=cap, fitted=(small, large)
    )
    errors = {
        size: found.rate(size) / rate - 1
        for size, rate in sorted(rates.items())
        if size not in (small, large)
    }
    return replace(found, errors=errors)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """Limits of a shard's size other than efficiency; None means no such limit."""

    dataset_bytes: float
    streams: int  # workers of all ranks
    prefetch: int = 2
    memory_bytes: float | None = None  # of one host that runs all of the streams
    first_batch_s: float | None = FIRST_BATCH_S
    shuffle_window_bytes: float | None = None  # of each stream

    def upper(self, found: Fit) -> dict[str, float]:
        """Largest sizes, by the reason for each limit."""
        limits = {
            f"{SHARDS_PER_STREAM} shards for each of {self.streams} streams": self.dataset_bytes
            / (SHARDS_PER_STREAM * self.streams)
        }
        if self.memory_bytes:
            held = self.streams * self.prefetch
            limits[f"{held} shards in {MEMORY_SHARE:.0%} of the memory"] = (
                MEMORY_SHARE * self.memory_bytes / held
            )
        if self.first_batch_s is not None:
            # All streams share the cap while they fetch their first shard.
            each = (
                found.bytes_per_s
                if found.cap is None
                else min(found.bytes_per_s, found.cap / found.streams)
            )
            limits[f"a first shard within {self.first_batch_s:g} s"] = (
                max(0.0, self.first_batch_s - found.latency_s) * each
            )
        if self.shuffle_window_bytes is not None:
            limits["a shuffle window of at least one shard"] = self.shuffle_window_bytes
        return limits


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSize:
    """The recommended size: a power of two between the efficient size and the lowest limit."""

    bytes: int
    efficient_bytes: float
    upper: Mapping[str, float]
    efficiency: float  # at the recommended size, as a share (0 to 1) of the largest useful rate
    extrapolated: bool  # outside the measured sizes by more than a factor of 4
    fit: Fit

    @property
    def bound_by(self) -> str:
        """The limit that is below the efficient size; '' if there is none."""
        name = min(self.upper, key=lambda key: self.upper[key])
        return name if self.upper[name] < self.efficient_bytes else ""


def shard_size(
    found: Fit, bounds: Bounds, *, smallest: float, largest: float, needed: float | None = None
) -> ShardSize:
    """Recommend a size.

    ``smallest`` and ``largest`` are the measured sizes. The result is below ``smallest`` only if a
    limit requires it, because nothing was measured there. ``needed`` is the rate in stored bytes/s
    above which another stage is the limit; None if there is no such stage.
    """
    efficient = found.efficient_bytes(needed)
    limits = bounds.upper(found)
    upper = max(1.0, min(limits.values()))
    # The margin of 0.02 is for mean shard sizes that differ from a power of two by a sample.
    size = 2 ** math.ceil(math.log2(max(efficient, smallest)) - 0.02)
    if size > upper:
        size = 2 ** math.floor(math.log2(upper))
    return ShardSize(
        bytes=size,
        efficient_bytes=efficient,
        upper=limits,
        efficiency=min(1.0, found.rate(size) / found.max_rate(needed)),
        extrapolated=size > 4 * largest or size < smallest / 4,
        fit=found,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedCodec:
    """One codec compared with none, other settings equal. Bytes/s are of uncompressed samples."""

    codec: str
    ratio: float  # stored bytes without the codec over stored bytes with it
    storage_bytes_per_s: float  # without the codec
    decode_bytes_per_s: float  # of all usable cores
    predicted: float  # factor on samples/s
    measured: float | None

    @property
    def worth(self) -> bool:
        return (
            self.decode_bytes_per_s > self.storage_bytes_per_s
            and self.ratio > 1.0
            and self.predicted > 1.0
        )

    @property
    def agrees(self) -> bool:
        """Whether the measurement confirms ``worth``, within the noise."""
        return self.measured is None or (
            self.measured > 1 - NOISE if self.worth else self.measured < 1 + NOISE
        )


def judge_codec(
    packed: SweptPoint, plain: SweptPoint, *, key: str = "dataset.codec"
) -> ComparedCodec | None:
    """Compare two points that differ in the codec; None if a ceiling that is needed is missing."""
    with_codec, without = judge(packed.document).evidence, judge(plain.document).evidence
    size = plain_bytes_per_sample(plain.document)
    if (
        without.storage is None
        or with_codec.prep is None
        or size is None
        or not packed.stored_bytes
        or not plain.stored_bytes
    ):
        return None
    busy = max(with_codec.workers, with_codec.accelerators)
    usable = busy if with_codec.cores is None else min(busy, with_codec.cores)
    decode = (
        with_codec.prep if with_codec.cores is None else with_codec.prep / usable * with_codec.cores
    )
    ratio = plain.stored_bytes / packed.stored_bytes
    predicted_with = _lowest(
        [without.storage * ratio, with_codec.prep, with_codec.loader, with_codec.accelerator]
    )
    predicted_without = _lowest(
        [without.storage, without.prep, without.loader, without.accelerator]
    )
    return ComparedCodec(
        codec=packed.settings.get(key, packed.document.job.dataset.asked.get("codec", "none")),
        ratio=ratio,
        storage_bytes_per_s=without.storage * size,
        decode_bytes_per_s=decode * size,
        predicted=predicted_with / predicted_without,
        measured=packed.median / plain.median if packed.rates and plain.rates else None,
    )


def _lowest(rates: Sequence[float | None]) -> float:
    return min(rate for rate in rates if rate is not None)

"""Why a point is recommended: its shard size, its codec, and the words of each reason.

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

from ...base.units import (
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    format_share,
)
from ...judge.judged import judge
from ...judge.statistics import NOISE, ratio_interval
from .points import NEAR, SweptPoint, along, enough_shards, near_best, plain_bytes_per_sample

CODEC = "dataset.codec"

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
    memory_bytes: float | None = None  # of all hosts together, which run all of the streams
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
            limits[f"{held} shards in {format_share(MEMORY_SHARE)} of the memory"] = (
                MEMORY_SHARE * self.memory_bytes / held
            )
        # Of a longer wait for the first byte, no size is small enough.
        if self.first_batch_s is not None and self.first_batch_s > found.latency_s:
            # All streams share the cap while they fetch their first shard.
            each = (
                found.bytes_per_s
                if found.cap is None
                else min(found.bytes_per_s, found.cap / found.streams)
            )
            limits[f"a first shard within {self.first_batch_s:g} s"] = each * (
                self.first_batch_s - found.latency_s
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


def judge_codec(packed: SweptPoint, plain: SweptPoint) -> ComparedCodec | None:
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
        codec=packed.settings.get(CODEC, packed.document.job.dataset.asked.get("codec", "none")),
        ratio=ratio,
        storage_bytes_per_s=without.storage * size,
        decode_bytes_per_s=decode * size,
        predicted=predicted_with / predicted_without,
        measured=packed.median / plain.median if packed.rates and plain.rates else None,
    )


def _lowest(rates: Sequence[float | None]) -> float:
    return min(rate for rate in rates if rate is not None)


AMPLIFIED = 1.25
"""Bytes read per byte delivered above which reads are reported as wasteful."""

SHARD_KEYS = ("dataset.shard_size", "dataset.samples_per_shard")


def _rate(point: SweptPoint) -> str:
    return f"{format_count(point.median)} samples/s"


def why_chosen(
    points: Sequence[SweptPoint], chosen: SweptPoint, dataset_bytes: float | None = None
) -> str:
    """Explain the choice. ``dataset_bytes``: of the data, if it will be larger than the sweep's."""
    best, near = max(points, key=lambda point: point.median), near_best(points)
    if chosen not in near:
        share = format_percent(chosen.median / best.median)
        return (
            f"it reaches {share} of the best of {len(points)} points ({_rate(best)}). It has the "
            "smallest shards that reach 95 %"
        )
    if chosen is best and len(near) == 1:
        return (
            f"it is the fastest of {len(points)} points ({_rate(chosen)}), and no other is within "
            "5 % of it"
        )
    share = format_percent(chosen.median / best.median)
    few = 0
    if enough_shards(chosen, dataset_bytes):
        few = sum(not enough_shards(point, dataset_bytes) for point in near)
    idle = (
        f". {few} of them {'has' if few == 1 else 'have'} fewer than 4 shards for each worker, so "
        "some workers will be idle"
        if few
        else ""
    )
    return (
        f"{len(near)} of {len(points)} points are within {format_share(1 - NEAR)} of the best "
        f"({_rate(best)}), and their intervals overlap with it{idle}. This one has the smallest "
        f"settings and costs, and reaches {share} of the best"
    )


def why_number(points: Sequence[SweptPoint], chosen: SweptPoint, key: str) -> str:
    """Explain a number by the rates along its axis."""
    line = along(points, chosen, key)
    if len(line) < 2 or key in SHARD_KEYS:
        return ""
    best = max(line, key=lambda point: point.median)
    rates = ", ".join(f"{point.settings[key]}: {format_count(point.median)}" for point in line)
    share = format_percent(chosen.median / best.median)
    text = (
        f"with {key}={chosen.settings[key]} it reaches {share} of the best along this axis. "
        f"The samples/s are {rates}"
    )
    last = line[-1]
    if last is not best and last not in near_best(line):
        text += (
            f". A larger value is slower: {last.settings[key]} reaches "
            f"{format_percent(last.median / best.median)}"
        )
    return text


def why_name(points: Sequence[SweptPoint], chosen: SweptPoint, key: str) -> str:
    others = [point for point in along(points, chosen, key) if point is not chosen]
    if not others:
        return ""
    compared = []
    for other in others:
        ratio, low, high, _ = ratio_interval(chosen.rates, other.rates)
        times = f"{ratio:.2f} x [{low:.2f}, {high:.2f}]"
        compared.append(f"it is {times} as fast as with {other.settings[key]}")
    return f"with {key}={chosen.settings[key]} {'. I'.join(each[1:] for each in compared)}"


def why_codec(codec: ComparedCodec) -> str:
    side = "more than" if codec.decode_bytes_per_s > codec.storage_bytes_per_s else "less than"
    verdict = "worth it" if codec.worth else "not worth it"
    measured = "" if codec.measured is None else f", and measured is {codec.measured:.2f} x"
    return (
        f"codec {codec.codec} is {verdict}: the cores decompress "
        f"{format_rate(codec.decode_bytes_per_s)}, {side} the "
        f"{format_rate(codec.storage_bytes_per_s)} of storage. The data becomes "
        f"{codec.ratio:.2f} x smaller. Predicted is {codec.predicted:.2f} x the rate without it"
        f"{measured}. A codec helps only if the cores decompress faster than the storage delivers"
    )


def why_shard(shard: ShardSize) -> str:
    model = shard.fit
    small, large = (format_bytes(size) for size in model.fitted)
    error = "" if model.worst is None else f", and its error at another size is {model.worst:+.0%}"
    cap = "" if model.cap is None else f", all streams together at most {format_rate(model.cap)}"
    name = min(shard.upper, key=lambda key: shard.upper[key])
    limit = format_bytes(shard.upper[name])
    reached = f", and reach {format_percent(shard.efficiency)} of it" if shard.bound_by else ""
    outside = ". This size is outside the measured range" if shard.extrapolated else ""
    return (
        f"shards of {format_bytes(shard.bytes)}: a stream waits {format_duration(model.latency_s)} "
        f"for a shard and then reads {format_rate(model.bytes_per_s)}{cap}. The model was fitted "
        f"to shards of {small} and {large}{error}. Shards of "
        f"{format_bytes(shard.efficient_bytes)} reach 95 % of the useful rate. At most "
        f"{limit} leave room for {name}{reached}{outside}"
    )


def amplification(point: SweptPoint) -> str:
    """A sentence on bytes that are read although no sample needs them; '' if there are few."""
    shares = [
        r.bytes_read / r.sample_bytes for r in point.complete if r.sample_bytes and r.bytes_read
    ]
    if not shares or max(shares) <= AMPLIFIED:
        return ""
    spec = point.document.job.dataset.spec
    if spec is not None and spec.format == "parquet":
        remedy = (
            "Rows are read in whole row groups: read the groups in sequence "
            "(reader.access=sequential), or write smaller groups"
        )
    elif point.document.job.loader.direct:
        remedy = (
            "O_DIRECT reads whole blocks around each sample: use larger samples, sequential "
            "access, or reader.direct=false"
        )
    else:
        remedy = (
            "Read whole shards (reader.access=sequential), or store samples so that each can be "
            "read alone"
        )
    return f"{max(shares):.2f} bytes are read for each byte that is delivered. {remedy}"

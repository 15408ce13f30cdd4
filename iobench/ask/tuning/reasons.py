"""Explain the recommended settings: a few sentences for each rule, with the figures behind them."""

from __future__ import annotations

from collections.abc import Sequence

from ...base.units import (
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
)
from ...judge.statistics import ratio_interval
from .points import NEAR, SweptPoint, along, enough_shards, near_best
from .shardsize import ComparedCodec, ShardSize

AMPLIFIED = 1.25
"""Bytes read per byte delivered above which reads are reported as wasteful."""

SHARD_KEYS = ("dataset.shard_size", "dataset.samples_per_shard")


def _rate(point: SweptPoint) -> str:
    return f"{format_count(point.median)} samples/s"


def why_chosen(points: Sequence[SweptPoint], chosen: SweptPoint) -> str:
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
    few = sum(not enough_shards(point) for point in near) if enough_shards(chosen) else 0
    idle = (
        f". {few} of them {'has' if few == 1 else 'have'} fewer than 4 shards for each worker, so "
        "some workers will be idle"
        if few
        else ""
    )
    return (
        f"{len(near)} of {len(points)} points are within {1 - NEAR:.0%} of the best "
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

"""Whether a codec is worth its cost.

It is worth it only if the cores decompress faster than storage delivers uncompressed bytes. If
reading and decompressing overlap, the rate with compression ratio r is ``min(r BW, cores D)``
uncompressed bytes/s, and ``BW`` without a codec. So compress only if ``cores D > BW`` and r > 1
(ecosystem notes 4.3). D is taken from the prep ceiling. It therefore includes decoding and
collating, as these cores really do them. The rule holds if storage is the limit without the codec,
and the training leaves the cores to the loader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..compare.statistics import NOISE
from ..verdict.judged import judge
from .points import Point, plain_bytes_per_sample


@dataclass(frozen=True, kw_only=True, slots=True)
class Codec:
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


def judge_codec(packed: Point, plain: Point, *, key: str = "dataset.codec") -> Codec | None:
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
        [without.storage * ratio, with_codec.prep, with_codec.harness, with_codec.accelerator]
    )
    predicted_without = _lowest(
        [without.storage, without.prep, without.harness, without.accelerator]
    )
    return Codec(
        codec=packed.settings.get(key, packed.document.job.dataset.asked.get("codec", "none")),
        ratio=ratio,
        storage_bytes_per_s=without.storage * size,
        decode_bytes_per_s=decode * size,
        predicted=predicted_with / predicted_without,
        measured=packed.median / plain.median if packed.rates and plain.rates else None,
    )


def _lowest(rates: Sequence[float | None]) -> float:
    return min(rate for rate in rates if rate is not None)

"""Whether a codec is worth it: only where the cores undo it faster than storage delivers plain bytes.

With reading and decompressing overlapped the rate is ``min(r BW, cores D)`` plain bytes/s, without a codec ``BW``; so compress iff
``cores D > BW`` and r > 1 (ecosystem notes 4.3). D is taken from the prep ceiling, so it holds decoding and collating as well, and
is what these cores really do. Validity: storage binds without the codec; the training leaves the cores to the loader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..verdict.evidence import gather
from .points import Point, plain_bytes_per_sample


@dataclass(frozen=True, kw_only=True, slots=True)
class Codec:
    """One codec against none, with the other settings equal. Bytes/s are of samples before the codec."""

    codec: str
    ratio: float  # stored bytes without over with the codec
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
        """Whether the measurement is on the side that the rule is on, within the noise of 5 %."""
        return self.measured is None or (
            self.measured > 0.95 if self.worth else self.measured < 1.05
        )


def judge_codec(packed: Point, plain: Point, *, key: str = "dataset.codec") -> Codec | None:
    """None where the ceilings that the rule needs were not measured."""
    with_codec, without = gather(packed.document), gather(plain.document)
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
        codec=packed.settings.get(key, packed.document.dataset.spec.codec),
        ratio=ratio,
        storage_bytes_per_s=without.storage * size,
        decode_bytes_per_s=decode * size,
        predicted=predicted_with / predicted_without,
        measured=packed.median / plain.median if packed.rates and plain.rates else None,
    )


def _lowest(rates: Sequence[float | None]) -> float:
    return min(rate for rate in rates if rate is not None)

"""Storage curves that are planted: the rates are known, and nothing is measured."""

from __future__ import annotations

from typing import Any

from iobench.record.curve import CurvePoint, Rate, StorageCurve


def point(in_flight: int, reads: Rate | float, size: int = 4096, **more: Any) -> CurvePoint:
    """A point of so many reads/s of ``size`` bytes each."""
    rate = reads if isinstance(reads, Rate) else Rate(value=reads)
    scaled = {
        name: None if value is None else value * size for name, value in rate if name != "windows"
    }
    found: dict[str, Any] = {
        "in_flight": in_flight,
        "reads_per_s": rate,
        "bytes_per_s": Rate.model_validate({**scaled, "windows": rate.windows}),
        "reads": 1000,
        "seconds": 1.0,
        "disjoint": True,
    }
    return CurvePoint.model_validate(found | more)


def curve(points: list[CurvePoint], size: int = 4096, order: str = "random") -> StorageCurve:
    sizes = dict.fromkeys(("request_bytes", "request_bytes_min", "request_bytes_max"), size)
    rest = {"order": order, "by": "fio", "how": "planted", "direct": True, "points": points}
    return StorageCurve.model_validate(sizes | rest)

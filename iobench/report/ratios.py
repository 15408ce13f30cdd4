"""Ratios with their intervals as a chart around 1, which ``compare`` and ``ab`` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..schema.claim import Claim
from ..schema.metrics import BY_NAME
from ..units import format_factor
from .figures import format_of
from .sections import Axis, Range, Ranges, Section

MIN_SPAN, MAX_SPAN = 0.05, 1.0
"""How far from 1 the axis reaches on each side."""


def ratio_chart(
    claims: Sequence[Claim],
    *,
    name: str,
    title: str,
    label: str,
    table: str,
    values: Mapping[str, tuple[float, float]],
) -> list[Section]:
    """One bar for each claim with a ratio; nothing without any. ``label`` is that of the axis.

    ``values``: of a metric, the figures of the baseline and of the candidate, which are shown
    beside the ratio.
    """
    known = [(claim, claim.ratio) for claim in claims if claim.ratio is not None]
    if not known:
        return []
    ends = [end for _, ratio in known for end in (ratio.low, ratio.value, ratio.high) if end]
    span = min(MAX_SPAN, max(MIN_SPAN, *(1.1 * abs(end - 1) for end in ends)))
    rows = tuple(
        Range(
            label=BY_NAME[claim.metric].short,
            text=format_factor(ratio.value) + _of(claim.metric, values),
            value=ratio.value,
            low=ratio.low,
            high=ratio.high,
            mark=_mark(claim),
            tone="plain" if claim.better is None else "good" if claim.better else "bad",
        )
        for claim, ratio in known
    )
    axis = Axis(label=label, unit="ratio", start=1 - span)
    chart = Ranges(
        id=name, title=title, axis=axis, rows=rows, origin=1.0, full=1 + span, table=table
    )
    return [chart]


def _of(metric: str, values: Mapping[str, tuple[float, float]]) -> str:
    if metric not in values:
        return ""
    show = format_of(BY_NAME[metric])
    before, after = values[metric]
    return f": {show(before)} -> {show(after)}"


def _mark(claim: Claim) -> str:
    """Better and worse are words, too: no figure is told by colour alone."""
    if claim.answer == "not told":
        return ""
    if claim.better is None:
        return claim.answer
    return "better" if claim.better else "WORSE"

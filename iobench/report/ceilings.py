"""The ceilings of a run as bars: what each stage can do alone, and what all do together."""

from __future__ import annotations

from collections.abc import Mapping

from ..analyse.figures.in_flight import bytes_per_sample
from ..analyse.verdict.judged import judge
from ..schema.record import TrainingRecord
from ..schema.training import Ceiling
from ..units import RATE_UNITS, counted, format_count, format_rate
from .figures import BLANK, NO_REASON, figure, with_interval, word
from .rates import BURST, is_burst
from .sections import Bars, Cell, Chart, Column, Mark, Row, Section, Table

LABELS = {
    "storage_raw": "storage, raw",
    "fetch": "fetch",
    "prep": "prep",
    "loader": "loader",
    "cpu": "all cores",
    "accelerator": "accelerators",
}
BOUND_BY = {
    "storage": ("fetch", "storage_raw"),
    "prep": ("prep",),
    "loader": ("loader",),
    "accelerator": ("accelerator",),
    "cpu": ("cpu",),
}
"""The ceilings of the bottleneck; saves, barriers and the start of epochs have none."""
LONGEST = 8
"""Longest bar, as a multiple of the lowest rate.

Without this limit a loader of 12 GB/s would make the other bars too short to compare.
"""


def ceiling_sections(doc: TrainingRecord) -> list[Section]:
    """Bars for the ceilings, the prediction and the measured rate.

    All are in one unit of stored bytes/s (samples/s if the bytes are not known).
    """
    size, evidence = bytes_per_sample(doc), judge(doc).evidence
    rates = {
        "storage_raw": evidence.raw,
        "fetch": evidence.fetch,
        "prep": evidence.prep,
        "loader": evidence.loader,
        "cpu": evidence.cpu,
        "accelerator": evidence.accelerator,
        "predicted": evidence.predicted,
        "measured": evidence.measured,
    }
    known = [rate for rate in rates.values() if rate]
    if not known:
        return []
    reasons = {name: one.not_measured or NO_REASON for name, one in doc.job.ceilings.items()}
    reasons |= {"predicted": "no ceiling was measured", "measured": "no complete repetition"}
    bound = BOUND_BY.get(doc.job.verdict.bottleneck, ()) if doc.job.verdict else ()
    if "fetch" in bound and rates["fetch"] is not None:
        bound = ("fetch",)
    divisor, unit = _unit(min(known) * size) if size else (1.0, "")
    rows = []
    for name, rate in rates.items():
        if rate is None and name not in reasons:
            continue
        label = word(LABELS.get(name, name), name)
        if not rate and doc.job.subject.watched:
            continue  # the note says it once for all of them
        if not rate:
            lacking = Cell(value=None, why=f"not measured: {reasons.get(name, NO_REASON)}")
            rows.append(Row(cells=(label, lacking, *[BLANK] * bool(size), BLANK, BLANK, BLANK)))
            continue
        ceiling = doc.job.ceilings.get(name, Ceiling())
        cells = [
            label,
            *([Cell(value=rate * size, text=_figure(rate * size / divisor))] if size else []),
            _with_interval(rate, ceiling),
            figure(ceiling.bytes_per_s, format_rate, missing=""),
            figure(ceiling.cpu_s_per_gb, lambda seconds: f"{seconds:.4g}", missing=""),
            word(ceiling.how),
        ]
        rows.append(Row(cells=tuple(cells), mark="bottleneck" if name in bound else ""))
    stored = Column(name="stored_bytes_per_s", label=unit, unit="bytes/s", align="right")
    columns = (
        Column(name="ceiling"),
        *([stored] if size else []),
        Column(name="samples_per_s", label="samples/s", unit="samples/s", align="right"),
        Column(
            name="bytes_per_s",
            label="bandwidth, as measured",
            unit="bytes/s",
            align="right",
            where="pages",
        ),
        Column(name="cpu_s_per_gb", label="CPU s/GB", unit="s/GB", align="right", where="pages"),
        Column(name="how", label="how", where="pages"),
    )
    of = f"{unit} of stored bytes and samples/s" if size else "samples/s"
    longest = min(max(known), LONGEST * min(known))
    return [
        Table(
            id="ceilings",
            title=f"Ceilings of each stage alone, {of}",
            columns=columns,
            rows=tuple(rows),
            bars=Bars(column="samples_per_s", full=longest),
            charts=(
                Chart(
                    kind="bars",
                    y=("samples_per_s",),
                    label=("ceiling",),
                    title="What each stage can do alone, and what the accelerators demand",
                    y_label="samples/s",
                    full=longest,
                    marks=_demands(doc, rates, longest),
                ),
            ),
            notes=(*_transport(doc, size), *_of_watched(doc), *_of_burst(doc)),
        ),
    ]


def _of_burst(doc: TrainingRecord) -> tuple[str, ...]:
    return (f"the ceilings of the storage were {BURST}",) if is_burst(doc) else ()


MAX_DEMANDS = 6
"""Numbers of accelerators whose demand is marked: 1, 2, 4 ... and the number of the run."""


def _demands(
    doc: TrainingRecord, rates: Mapping[str, float | None], longest: float
) -> tuple[Mark, ...]:
    """The demand of the run's accelerators and of more of them, as lines of a chart."""
    demand, ranks = rates.get("accelerator"), doc.job.accelerators
    each = demand / ranks if demand else 0.0
    return tuple(
        Mark(at=each * number, label=f"demand of {counted(number, 'accelerator')}")
        for number in demands(ranks, int(min(longest / each, 1e18)) if each > 0 else 0)
    )


def demands(ranks: int, limit: int) -> list[int]:
    """Numbers of accelerators to mark, up to ``limit``: the run's own, and powers of two.

    Of more than MAX_DEMANDS the largest ones, since the lines of the others would lie together.
    """
    powers = [1 << power for power in range(limit.bit_length())]
    own = [ranks] if ranks <= limit else []
    others = [number for number in powers if number <= limit and number not in own]
    return sorted([*own, *others[-(MAX_DEMANDS - len(own)) :]])


def _with_interval(rate: float, ceiling: Ceiling) -> Cell:
    """The rate, with its interval if it is that of several windows."""
    windows = ceiling.windows
    if windows is None or windows.value != rate:
        return Cell(value=rate, text=format_count(rate))
    return with_interval(rate, windows.low, windows.high, format_count)


def _transport(doc: TrainingRecord, size: float | None) -> tuple[str, ...]:
    tax = doc.job.ceilings.get("loader", Ceiling()).details.tensor_samples_per_s
    if not tax:
        return ()
    moved = f"{format_count(tax)} samples/s"
    moved = f"{format_rate(tax * size)} ({moved})" if size else moved
    return (f"with torch's default transport the loader would end at {moved}",)


def _of_watched(doc: TrainingRecord) -> tuple[str, ...]:
    """Which ceilings a training that was watched does not have, and why."""
    lacking = {name: one.not_measured for name, one in doc.job.ceilings.items() if one.not_measured}
    if not doc.job.subject.watched or not lacking:
        return ()
    names = ", ".join(LABELS.get(name, name) for name in lacking)
    return (f"not measured: {names}: {next(iter(lacking.values()))}",)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _unit(bytes_per_s: float) -> tuple[float, str]:
    for power in range(len(RATE_UNITS) - 1, 0, -1):
        if bytes_per_s >= 0.1 * 1000**power:
            return float(1000**power), RATE_UNITS[power]
    return 1.0, RATE_UNITS[0]

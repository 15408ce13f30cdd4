"""CPU seconds per GB by stage, each measured alone, and those of all stages together."""

from __future__ import annotations

from statistics import median

from ..schema.record import TrainingRecord
from ..schema.training import Ceiling
from .figures import word
from .sections import Cell, Chart, Column, Row, Section, Table

STAGES = {"fetch": "fetch", "prep": "decode", "loader": "hand-over"}


def cpu_sections(doc: TrainingRecord) -> list[Section]:
    """Bars for the stages whose CPU time was measured, and for the repetitions."""
    found: dict[str, tuple[str, float, str]] = {}
    for name, label in STAGES.items():
        ceiling = doc.job.ceilings.get(name, Ceiling())
        if ceiling.cpu_s_per_gb is not None:
            found[name] = (label, ceiling.cpu_s_per_gb, f"alone: {ceiling.how}")
    taken = [
        each.cpu_s / each.sample_bytes * 1e9
        for each in doc.job.repetitions
        if each.complete and each.cpu_s is not None and each.sample_bytes
    ]
    if taken:
        how = "all ranks and workers of a repetition, median"
        found["together"] = ("all together", median(taken), how)
    if not any(name in found for name in STAGES) or not any(each[1] for each in found.values()):
        return []
    title = "CPU seconds per GB of stored samples, by stage"
    return [
        Table(
            id="cpu",
            title=title,
            columns=(
                Column(name="stage", label="stage"),
                Column(name="cpu_s_per_gb", label="CPU s/GB", unit="s/GB", align="right"),
                Column(name="how", label="how"),
            ),
            rows=tuple(
                Row(cells=(word(label, name), Cell(value=value, text=f"{value:.4g}"), word(how)))
                for name, (label, value, how) in found.items()
            ),
            charts=(Chart(kind="bars", y=("cpu_s_per_gb",), label=("stage",)),),
            notes=_missing(doc),
            where="pages",
        ),
    ]


def _missing(doc: TrainingRecord) -> tuple[str, ...]:
    notes = [
        f"{label}: not measured: {reason}"
        for name, label in STAGES.items()
        if (reason := doc.job.ceilings.get(name, Ceiling()).not_measured)
    ]
    return tuple(notes)

"""What each stage costs: the rate of the run without it, over its rate as it is."""

from __future__ import annotations

from ..analyse.verdict.promise import shown
from ..schema.record import TrainingRecord
from ..schema.verdict import AblatedStage, Ablation
from ..units import format_count
from .figures import NO_REASON, estimated, raw, word
from .rates import is_burst
from .sections import Bars, Cell, Chart, Column, Prose, Row, Section, Table

LABELS: dict[AblatedStage, str] = {
    "storage": "storage",
    "prep": "prep",
    "accelerator": "accelerators",
    "sync": "sync",
    "checkpoint": "checkpoints",
    "fill": "fill",
}
LONGEST = 8.0
"""Longest bar, as a multiple of the rate as it is."""


def ablation_sections(doc: TrainingRecord) -> list[Section]:
    """A bar for each stage that was left out; why, where none was."""
    job = doc.job
    present = [each for each in job.ablations if _concerns(doc, each.stage)]
    if not any(each.gain for each in present):
        if not job.no_ablations:
            return []
        why = f"What each stage costs was not measured: {job.no_ablations}."
        return [Prose(id="ablations", paragraphs=(why,))]
    present.sort(key=lambda each: -each.gain.value if each.gain else 0.0)
    largest = max(each.gain.value for each in present if each.gain)
    full = min(max(largest, 1.0), LONGEST)
    return [
        Table(
            id="ablations",
            title="What each stage costs: samples/s if it took no time, over samples/s as it is",
            columns=(
                Column(name="stage"),
                Column(name="gain", label="gain", unit="ratio", align="right"),
                Column(name="low", where="data"),
                Column(name="high", where="data"),
                Column(name="n", label="rounds", align="right"),
                Column(name="how", label="how", where="pages"),
            ),
            rows=tuple(_row(each) for each in present),
            bars=Bars(column="gain", full=full),
            charts=(
                Chart(
                    kind="bars",
                    y=("gain",),
                    label=("stage",),
                    title="What each stage costs",
                    y_label="samples/s without the stage, over samples/s as it is",
                    origin=1.0,
                    full=full,
                ),
            ),
            notes=_over_what_lasts(doc),
        ),
    ]


def _over_what_lasts(doc: TrainingRecord) -> tuple[str, ...]:
    """The storage's gain over the rate after its fall, where the verdict rests on that rate."""
    gain = doc.job.verdict.gains.get("storage") if doc.job.verdict else None
    if gain is None or not is_burst(doc):
        return ()
    return (
        "rounds compare whole repetitions; over the rate after its fall, leaving out the storage "
        f"brings {shown(gain)}",
    )


def _concerns(doc: TrainingRecord, stage: AblatedStage) -> bool:
    """Whether the run has such a stage: one rank waits for no other one."""
    if stage == "sync":
        return doc.job.accelerators > 1
    return stage != "checkpoint" or doc.job.saves is not None


def _row(ablation: Ablation) -> Row:
    gain = ablation.gain
    label = word(LABELS[ablation.stage], ablation.stage)
    how = word(ablation.how)
    if gain is None:
        why = f"not measured: {ablation.not_measured or NO_REASON}"
        return Row(cells=(label, Cell(value=None, why=why), raw(None), raw(None), raw(None), how))
    number = Cell(value=gain.n, text=format_count(gain.n))
    cells = (
        label,
        estimated(gain),
        raw(gain.low),
        raw(gain.high),
        number,
        how,
    )
    return Row(cells=cells)

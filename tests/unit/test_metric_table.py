"""The table of metrics and what the analysis produces are the same set, and every reader uses
it.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from types import NoneType
from typing import get_args

from iobench.record.metrics import METRICS, metrics_of
from iobench.record.run import load_run
from iobench.record.training import Repetition
from iobench.record.verdict import Verdict
from iobench.report.record import sections
from iobench.report.render_csv import render_csv
from iobench.report.render_text import render_text

BESIDE_SAVES = Path(__file__).parent.parent / "golden/0.1.0/runs/beside-saves"

CONTEXT = {"seed", "accelerators", "complete"}
"""Numbers of a repetition that were given, not measured."""

OF_HOSTS = {"window_s", "tail_s"}
"""Numbers of a repetition on several hosts, which are told in their own part of a report."""


def numbers(model: type[Repetition] | type[Verdict]) -> set[str]:
    """The keys of a model whose values are numbers, or None."""
    found = set()
    for key, field in model.model_fields.items():
        kinds = get_args(field.annotation) or (field.annotation,)
        plain = {getattr(kind, "__origin__", kind) for kind in kinds}  # without its bounds
        if plain - {NoneType} <= {int, float}:
            found.add(key)
    return found


def names(*kinds: str) -> set[str]:
    return {metric.name for metric in METRICS if metric.of in kinds}


def test_names_are_unique_within_a_kind() -> None:
    assert len({(metric.of, metric.name) for metric in METRICS}) == len(METRICS)


def test_what_is_recorded_of_a_repetition_and_a_verdict_is_in_the_table() -> None:
    assert numbers(Repetition) - CONTEXT - OF_HOSTS - {"workers_left_out"} == names("repetition")
    assert numbers(Verdict) - {"slowest_rank"} == names("verdict")  # a rank is no figure


def test_reports_and_csv_show_the_table() -> None:
    shown = sections(load_run(BESIDE_SAVES))
    header = next(csv.reader(io.StringIO(render_csv(shown))))
    assert names("repetition") | CONTEXT <= set(header)
    text = render_text(shown)
    for metric in metrics_of("repetition", median=True):
        # Figures of devices are shown where there are some; one label says more beside saves.
        if not metric.device and metric.name != "accelerator_utilization_sustained":
            assert f"  {metric.label}  " in text, metric

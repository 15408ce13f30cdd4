"""Conditions of ``--fail-on``."""

from __future__ import annotations

import pytest

from iobench.judge.validity import parse, violations
from tests.unit.conftest import build_run


@pytest.mark.parametrize(
    ("expression", "metric", "comparison", "value"),
    [
        ("accelerator_utilization<0.9", "accelerator_utilization", "<", 0.9),
        (" headroom <= 1.2 ", "headroom", "<=", 1.2),
        ("read_bytes_per_s<2e9", "read_bytes_per_s", "<", 2e9),
        ("accelerator_utilization<90%", "accelerator_utilization", "<", 0.9),
        ("fetch_stall>.2", "fetch_stall", ">", 0.2),
    ],
)
def test_parse(expression: str, metric: str, comparison: str, value: float) -> None:
    found = parse(expression)
    assert (found.metric, found.comparison) == (metric, comparison)
    assert found.value == pytest.approx(value)


def test_medians_are_compared() -> None:
    doc = build_run(au=0.95)
    assert (
        violations(doc, ["accelerator_utilization<0.95", "headroom<2", "accelerators_fed<4"]) == []
    )
    assert violations(doc, ["accelerator_utilization<0.96"]) == [
        "accelerator_utilization<0.96: accelerator_utilization is 0.95"
    ]
    assert violations(doc, ["accelerators_fed<=4", "samples_per_s>=1900"]) == [
        "accelerators_fed<=4: accelerators_fed is 4",
        "samples_per_s>=1900: samples_per_s is 1900",
    ]


def test_not_measured_is_a_violation_that_says_so() -> None:
    doc = build_run(
        au=None, repetition={"not_measured": {"accelerator_utilization": "the accelerator is null"}}
    )
    assert violations(doc, ["accelerator_utilization<0.5"]) == [
        "accelerator_utilization<0.5: accelerator_utilization was not measured (the accelerator is "
        "null)"
    ]
    assert len(violations(build_run(repetitions=0), ["samples_per_s>1e12"])) == 1

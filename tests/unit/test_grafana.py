"""The dashboard of deploy/grafana asks for what iobench exports, and for nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from iobench.record.metrics import METRICS
from iobench.record.run import load_run
from iobench.report.export_openmetrics import family_name, openmetrics

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD: Any = json.loads((ROOT / "deploy/grafana/iobench.json").read_text("utf-8"))
RUNS = (
    ROOT / "tests/golden/0.1.0/runs/checkpoint-stream",
    ROOT / "results/reference/storage-bound",  # with every stage left out once
)


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (
        variable["definition"]
        for variable in DASHBOARD["templating"]["list"]
        if variable["type"] == "query"
    )


def exported() -> dict[str, set[str]]:
    """The labels of each sample that a run may have, by its name."""
    labels = {family_name(metric): {"run", "stat"} for metric in METRICS}
    text = openmetrics(*map(load_run, RUNS))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def test_every_metric_and_label_that_is_asked_for_is_exported() -> None:
    known = exported()
    asked = set()
    for text in expressions():
        for name, selected in re.findall(r"(iobench_\w+)(?:\{([^}]*)\})?", text):
            assert name in known, text
            assert set(re.findall(r"(\w+)\s*=", selected)) <= known[name], text
            asked.add(name)
    assert len(asked) > 15


def test_each_panel_has_a_place_of_its_own() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells

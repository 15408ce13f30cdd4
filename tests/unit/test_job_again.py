"""The command of advice keeps all that the run was told, however it began."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from iobench.record.run import TrainingRecord
from tests.unit.conftest import build_run

SHORT = {"repetition": {"steps": 4}, "measured": 100, "au": 0.05}

TOLD = [
    *("--origin", "/mnt/my data", "--loader", "mine:make", "--loader-args", "n=2"),
    *("--accelerators", "2", "--seed", "7", "--set", "reader.concurrency=3", "--no-ablations"),
]


def advised(doc: TrainingRecord) -> list[str]:
    (advice,) = doc.job.verdict.advice
    return shlex.split(advice.change[advice.change.index("iobench ") :])


def pairs(words: Sequence[str], flag: str) -> list[str]:
    return [after for word, after in pairwise(words) if word == flag]


@pytest.mark.parametrize(
    ("given", "before_s"),
    [(["--budget", "20s"], 20), (["--budget=1min"], 60)],
)
def test_a_budget_grows(given: list[str], before_s: float) -> None:
    for begin in (["iobench", "run", "demo", "--data", "d"], ["iobench", "check", "d"]):
        words = advised(build_run(command=[*begin, *TOLD, *given], **SHORT))
        assert words[: len(begin) + len(TOLD)] == [*begin, *TOLD]
        (budget,) = pairs(words, "--budget")
        assert before_s < float(budget.removesuffix("s")) <= 10 * before_s
        assert not any(text.startswith("max_steps") for text in pairs(words, "--set"))


def test_a_run_that_began_in_another_way() -> None:
    """A sweep's, or one of Python: the line is put together from the record."""
    workload = {"name": "demo", "batch_size": 100, "reader": {"concurrency": 3}}
    dataset = {"location": "/mnt/my data.manifest", "origin": "/mnt/my data"}
    for command in ([], ["iobench.run"], ["iobench", "sweep", "demo", "--data", "x"]):
        doc = build_run(command=command, workload=workload, dataset=dataset, **SHORT)
        words = advised(doc)
        assert words[:3] == ["iobench", "run", "demo"]
        assert pairs(words, "--data") == ["/mnt/my data.manifest"]
        assert pairs(words, "--origin") == ["/mnt/my data"]
        assert pairs(words, "--accelerators") == ["2"]
        assert {"batch_size=100", "reader.concurrency=3"} <= {*pairs(words, "--set")}


def test_a_record_names_no_file_to_read(tmp_path: Any) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("batch_size: 5\n")
    doc = build_run(workload={"name": str(secret)}, **SHORT)
    words = advised(doc)
    assert words[:3] == ["iobench", "run", "demo"]  # what is given by settings alone
    assert not any(str(secret) in word for word in words)
    assert "batch_size=5" not in words

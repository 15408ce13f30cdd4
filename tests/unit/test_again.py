"""What a page tells to do a run again is what was recorded."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from iobench.record.run import TrainingRecord
from iobench.report.glance import again_sections, quoted
from iobench.report.sections import SourceLines
from iobench.settings.workload import load_workload
from tests.processes import in_process
from tests.unit.conftest import build_run

RUNS = Path(__file__).parent.parent / "golden" / "0.1.0" / "runs"


@pytest.mark.parametrize("word", ["a b", "it's", "a\nb", "\x1b[31m", "\udcff", "$HOME`x`", "", "é"])
def test_a_shell_takes_a_quoted_word_as_it_was(word: str) -> None:
    shown = quoted(word)
    assert shown.isprintable()
    done = subprocess.run(
        ["bash", "-c", f"printf %s {shown}"], capture_output=True, check=True, env={"LC_ALL": "C"}
    )
    assert done.stdout == word.encode("utf-8", "surrogateescape")


def test_several_runs_are_one_document(tmp_path: Path) -> None:
    """Each with its own figures; the exit code is that of the worst."""
    both = [str(RUNS / name) for name in ("calibrated", "checkpoint-stream")]
    page = tmp_path / "both.html"
    assert in_process("report", *both, "--html", "-o", str(page))[0] == 0
    text = page.read_text()
    assert all(f'id="run-{number}-answer"' in text for number in (1, 2))
    assert text.count("<h1") == 1
    code, _, err = in_process("report", *both, "--fail-on", "samples_per_s<1e9")
    assert (code, err.count("--fail-on")) == (4, 2)
    assert in_process("report", *both, str(tmp_path))[0] == 1


# The commands of another run of a job


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
    ("given", "before_s"), [(["--budget", "20s"], 20), (["--budget=1min"], 60)]
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


def sources(doc: TrainingRecord) -> dict[str, tuple[str, ...]]:
    return {each.id: each.lines for each in again_sections(doc) if isinstance(each, SourceLines)}


@pytest.mark.parametrize(
    "settings", [["loader.workers=3", "reader.concurrency=9"], ["accelerator.kind=null"]]
)
def test_a_workload_can_be_taken_from_a_page(settings: list[str], tmp_path: Path) -> None:
    asked = load_workload("resnet50-h100", settings)
    doc = TrainingRecord.model_validate(
        {
            **build_run().model_dump(mode="json"),
            "job": {
                **build_run().job.model_dump(mode="json"),
                "workload": asked.model_dump(mode="json"),
            },
        }
    )
    told = tmp_path / "workload.yaml"
    told.write_text("\n".join(sources(doc)["workload-yaml"]))
    null = {"step_time": None} if asked.accelerator.kind == "null" else {}
    used = asked.accelerator.model_copy(update=null)
    assert load_workload(str(told)) == asked.model_copy(update={"accelerator": used})

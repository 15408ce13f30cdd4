"""What a page tells to do a run again is what was recorded."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from iobench.record.run import TrainingRecord, load_run
from iobench.report.again import again_sections, quoted
from iobench.report.sections import SourceLines
from iobench.settings.base import build
from iobench.settings.workload import Workload, load_workload
from tests.processes import in_process
from tests.unit.conftest import build_run

RUNS = Path(__file__).parent.parent / "golden" / "0.1.0" / "runs"


def sources(doc: TrainingRecord) -> dict[str, tuple[str, ...]]:
    return {each.id: each.lines for each in again_sections(doc) if isinstance(each, SourceLines)}


def test_a_workload_can_be_taken_from_a_page() -> None:
    asked = load_workload("resnet50-h100", ["loader.workers=3", "reader.concurrency=9"])
    doc = TrainingRecord.model_validate(
        {
            **build_run().model_dump(mode="json"),
            "job": {
                **build_run().job.model_dump(mode="json"),
                "workload": asked.model_dump(mode="json"),
            },
        }
    )
    told = yaml.safe_load("\n".join(sources(doc)["workload-yaml"]))
    assert build(Workload, told, where="page") == asked


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
    code, out, err = in_process("report", *both, "--json")
    assert (code, [each["run_id"] for each in json.loads(out)]) == (
        0,
        [load_run(Path(each)).run_id for each in both],
    ), err
    page = tmp_path / "both.html"
    assert in_process("report", *both, "--html", "-o", str(page))[0] == 0
    text = page.read_text()
    assert all(f'id="run-{number}-answer"' in text for number in (1, 2))
    assert text.count("<h1") == 1
    code, _, err = in_process("report", *both, "--fail-on", "samples_per_s<1e9")
    assert (code, err.count("--fail-on")) == (4, 2)
    assert in_process("report", *both, str(tmp_path))[0] == 1

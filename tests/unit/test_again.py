"""What a page tells to do a run again is what was recorded."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from iobench.report.again import again_sections, quoted, yaml_lines
from iobench.report.glance import finding_sections, trust_text
from iobench.report.record import sections
from iobench.report.sections import Headline, SourceLines
from iobench.schema.base import build
from iobench.schema.record import Finding, TrainingRecord, load_run
from iobench.schema.workload import Workload, load_workload
from tests.processes import in_process
from tests.unit.conftest import build_run

RUNS = Path(__file__).parent.parent / "golden" / "0.1.0" / "runs"


def sources(doc: TrainingRecord) -> dict[str, tuple[str, ...]]:
    return {each.id: each.lines for each in again_sections(doc) if isinstance(each, SourceLines)}


def recorded(name: str) -> TrainingRecord:
    doc = load_run(RUNS / name)
    assert isinstance(doc, TrainingRecord)
    return doc


def test_the_command_and_the_specifications_are_those_of_the_record() -> None:
    doc = recorded("calibrated")
    found = sources(doc)
    assert shlex.split(found["again"][0]) == doc.command
    for name, record in (("workload", doc.job.workload), ("dataset", doc.job.dataset.spec)):
        told = yaml.safe_load("\n".join(found[f"{name}-yaml"]))
        assert told == {
            key: value
            for key, value in record.model_dump(mode="json", exclude_none=True).items()
            if value not in ("", [], {})
        }


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


def test_a_specification_of_others_has_bounds() -> None:
    lines = yaml_lines({f"k{number}": "</script>" for number in range(10_000)})
    assert len(lines) == 2001


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_a_run_that_did_not_end_well_says_so_before_its_verdict(status: str) -> None:
    doc = build_run().model_copy(update={"status": status, "error": "the disk is gone"})
    first, second, *_ = sections(doc)
    assert isinstance(first, Headline)
    assert (first.id, first.tone, second.id) == ("status", "bad", "verdict")
    assert "the disk is gone" in first.sentences


def test_what_makes_a_run_doubtful_comes_before_its_evidence() -> None:
    levels = ("info", "warning", "unknown", "invalid")
    found = [Finding(rule=f"r.{level}", level=level, evidence="e") for level in levels]
    doc = build_run().model_copy(update={"findings": found, "validity": "invalid"})
    failed, remarks = finding_sections(doc)
    assert [each.level for each in failed.findings] == ["invalid", "warning", "unknown"]
    assert [each.id for each in remarks] == ["remarks"]
    order = [each.id for each in sections(doc)]
    assert order.index("findings") < order.index("ceilings") < order.index("remarks")
    assert order[0] == "verdict"
    assert "1 rule failed" in trust_text(doc)
    assert "no rule failed" in trust_text(doc.model_copy(update={"findings": found[:1]}))


def test_a_page_without_a_recorded_command_has_that_which_made_it(tmp_path: Path) -> None:
    page = tmp_path / "whatif.html"
    words = ["whatif", str(RUNS / "calibrated"), "--cache", "1GiB", "--html", "-o", str(page)]
    assert in_process(*words)[0] == 0
    assert shlex.join(["iobench", *words]) in page.read_text()


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
    assert all(f'id="run-{number}-verdict"' in text for number in (1, 2))
    assert text.count("<h1") == 1
    code, _, err = in_process("report", *both, "--fail-on", "samples_per_s<1e9")
    assert (code, err.count("--fail-on")) == (4, 2)
    assert in_process("report", *both, str(tmp_path))[0] == 1

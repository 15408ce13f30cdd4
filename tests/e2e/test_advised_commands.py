"""The commands that reports advise: each has all that the run had, and does what it is said to."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import iobench
from iobench.record.run import TrainingRecord, load_training
from iobench.record.verdict import Advice
from iobench.report.advise import by_hand
from iobench.report.glance import again_sections
from iobench.report.sections import SourceLines
from iobench.settings.tags import tagged
from iobench.settings.workload import load_workload
from tests.processes import in_process

pytestmark = pytest.mark.filterwarnings("ignore")

BARE = ("-n", "1", "--calibration", "0s", "--no-ablations", "--quiet", "--json")
LOADER = "tests.planted_loaders:of_files"

Work = Callable[..., TrainingRecord]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: ``small``, a dataset of 64 files."""
    monkeypatch.chdir(tmp_path)
    size = ("--set", "sample_size.mean=20kB", "--set", "format=files")
    code, _, err = in_process(
        "generate", "demo", "--to", "small", "--samples", "64", *size, "--quiet"
    )
    assert code == 0, err
    return tmp_path


@pytest.fixture
def work(folder: Path) -> Work:
    """``work(line)`` carries the commands of a line out, and returns the record of the last."""

    def run(line: str) -> TrainingRecord:
        out = ""
        for command in line.split("; "):
            words = shlex.split(command)
            assert words[0] == "iobench"
            code, out, err = in_process(*words[1:])
            assert code in (0, 3), err
        return TrainingRecord.model_validate_json(out)

    return run


def advised(doc: TrainingRecord, of: str = "longer-run") -> str:
    """The commands that an advice of a run names."""
    (advice,) = (each for each in doc.job.verdict.advice if each.id == of)
    return advice.change[advice.change.index("iobench ") :]


def same_job(first: TrainingRecord, second: TrainingRecord, *but: str) -> None:
    """The second run asked for the same, but for some settings."""
    settings = [
        {
            key: value
            for key, value in doc.job.workload.model_dump(mode="json").items()
            if key not in {"epochs", "max_steps", *but}
        }
        for doc in (first, second)
    ]
    assert settings[0] == settings[1]
    for doc in (first, second):
        assert (doc.job.accelerators, doc.job.loader.kind) == (
            first.job.accelerators,
            first.job.loader.kind,
        )


def test_a_longer_run_of_a_loader_on_scanned_data(work: Work) -> None:
    code, _, err = in_process("scan", "small/data", "--save", "small.yaml")
    assert code == 0, err
    flags = "--data small.manifest --origin small/data --accelerators 2"
    loader = f"--loader {LOADER} --loader-args divide=true --loader-args 'sleep=0.001'"
    change = "--set accelerator.step_time=5ms --set max_steps=2"
    first = work(f"iobench run demo {flags} {loader} {change} {' '.join(BARE)}")
    second = work(advised(first))
    same_job(first, second)
    assert second.job.loader.user.factory == first.job.loader.user.factory == LOADER
    assert second.job.loader.user.arguments == first.job.loader.user.arguments
    assert second.job.dataset.origin == first.job.dataset.origin
    assert second.job.dataset.id == first.job.dataset.id
    assert not second.job.verdict.too_short


def test_more_data_for_a_run_whose_steps_were_limited(work: Work) -> None:
    change = "--set batch_size=100 --set max_steps=1 --set loader.workers=1"
    first = work(f"iobench run demo --data small {change} {' '.join(BARE)}")
    assert first.job.verdict.too_short
    assert not work(advised(first)).job.verdict.too_short


def test_a_run_that_python_began(folder: Path, work: Work) -> None:
    """Of a workload of the user's own, which the command has to say in settings."""
    settings = ["batch_size=8", "accelerator.step_time=0.003", "max_steps=2"]
    mine = load_workload("demo", settings).model_copy(update={"name": "mine"})
    plan = iobench.make_plan(mine, str(folder / "small"), accelerators=2, repetitions=1, seed=42)
    options = iobench.Options(
        results=folder / "results", calibration_s=0.0, command=("iobench.run",)
    )
    with tagged({"box": "nfs-b"}):
        _, directory = iobench.run_plan(plan, options)
    assert load_training(directory).tags == {"box": "nfs-b"}
    line = advised(load_training(directory))
    second = work(f"{line} {' '.join(BARE)}")
    same_job(load_training(directory), second, "name")
    assert not second.job.verdict.too_short


@pytest.mark.parametrize("change", ["pack", pytest.param("compress", marks=pytest.mark.nightly)])
def test_other_data_as_it_is_advised(change: Any, work: Work) -> None:
    flags = "--set batch_size=8 --set accelerator.step_time=1ms --set loader.workers=1"
    first = work(f"iobench run demo --data small {flags} {' '.join(BARE)}")
    verdict = first.job.verdict
    advice = [Advice(id=change, change="other data", basis="planted")]
    (item,) = by_hand(first.with_job(verdict=verdict.model_copy(update={"advice": advice})))
    second = work(item.basis[item.basis.index("iobench ") :])
    same_job(first, second)
    before, after = first.job.dataset, second.job.dataset
    assert after.samples == before.samples
    assert after.spec.sample_size == before.spec.sample_size
    if change == "pack":
        assert (after.shards or 0) < (before.shards or 0)
    else:
        assert after.spec.codec.startswith("zstd")


def test_a_folder_is_scanned_for_a_loader(folder: Path, work: Work) -> None:
    before = sorted(folder.joinpath("small/data").rglob("*"))
    flags = f"--loader {LOADER} --set accelerator.step_time=1ms"
    doc = work(f"iobench run demo --data small/data {flags} {' '.join(BARE)}")
    assert doc.job.dataset.samples == 64
    assert doc.job.loader.user.files_outside == 0
    assert (doc.job.loader.user.files_inside or 0) >= 64
    assert sorted(folder.joinpath("small/data").rglob("*")) == before
    # The manifest that it has left serves the next run, which scans nothing.
    (manifest,) = folder.glob("results/scanned/*.manifest")
    place = f"--data {manifest} --origin small/data"
    again = work(f"iobench run demo {place} {flags} {' '.join(BARE)}")
    assert again.job.dataset.id == doc.job.dataset.id
    assert len([*folder.glob("results/scanned/*.manifest")]) == 1
    # Without a loader of one's own, iobench reads the data itself, and asks for a scan.
    code, _, err = in_process("run", "demo", "--data", "small/data", *BARE)
    assert code != 0
    assert "iobench scan" in err


def test_a_job_from_the_specifications_on_its_page(folder: Path, work: Work) -> None:
    assert in_process("scan", "small/data", "--save", "small.yaml")[0] == 0
    place = "--data small.manifest --origin small/data"
    flags = f"--loader {LOADER} --loader-args sleep=0.001 --set accelerator.step_time=2ms"
    first = work(f"iobench run demo {place} {flags} {' '.join(BARE)}")
    parts = {each.id: each.lines for each in again_sections(first) if isinstance(each, SourceLines)}
    for name in ("workload", "dataset"):
        text = "\n".join(parts[f"{name}-yaml"])
        folder.joinpath(f"{name}.yaml").write_text(text)
    second = work(f"{'; '.join(parts['again-from-files'])} {' '.join(BARE[2:])}")
    same_job(first, second)
    assert second.job.dataset.id == first.job.dataset.id
    assert second.job.loader.user.arguments == {"sleep": "0.001"}

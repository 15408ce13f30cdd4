"""A record may name code, as a loader's factory or a model. No verb runs it by itself.

Whoever repeats a record of somebody else names that code again, as an address in it.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from iobench.record.run import load_training
from iobench.record.sweep import SweepPoint, load_sweep, save_sweep
from tests.processes import in_process
from tests.unit.conftest import build_sweep

pytestmark = pytest.mark.usefixtures("nothing_left")

WORKLOAD = """
name: small
dataset: demo
batch_size: 2
accelerator: {kind: "null"}
reader: {concurrency: 1}
loader: {workers: 1}
"""

MODULE = """
from pathlib import Path
Path(__file__).with_name("PWNED").touch()
def make(**given):
    raise SystemExit("called")
"""
"""A module beside the record: where it is imported, it leaves a file."""


def shell(home: Path) -> dict[str, Any]:
    """A loader that is any callable of Python's own."""
    words = f"touch {home / 'PWNED'}"
    return {"loader": {"kind": "user", "factory": "subprocess:getoutput", "args": {"cmd": words}}}


CODE: dict[str, Any] = {
    "a factory that is there": shell,
    "a factory beside the record": lambda home: {
        "loader": {"kind": "user", "factory": "evil_module:make"}
    },
    "a model beside the record": lambda home: {
        "accelerator": {"kind": "model", "model": "evil_module:make"}
    },
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a workload and one run of it."""
    home = tmp_path_factory.mktemp("records")
    size = ("--set", "samples=16", "--set", "sample_size.mean=20kB", "--set", "format=files")
    (home / "small.yaml").write_text(WORKLOAD)
    assert in_process("generate", "demo", "--to", home / "data", *size, "--quiet")[0] == 0
    slow = f"throttled+{home / 'data'}?latency=5ms"
    run = ("run", home / "small.yaml", "--data", slow, "--results", home / "runs")
    bare = ("--repeat", 1, "--calibration", "0s", "--no-ablations", "--quiet")
    code, _, err = in_process(*run, *bare)
    assert code == 0, err
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of somebody else's, which is the current one, with a run and a module beside it.

    Python's path and its modules stay as they are, and nothing of the folder is imported.
    """
    [run] = (made / "runs").iterdir()
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "evil_module.py").write_text(MODULE)
    (tmp_path / "run" / "evil_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield tmp_path
    assert sys.path == before
    assert "evil_module" not in sys.modules
    assert not list(tmp_path.rglob("PWNED"))


def planted(home: Path, workload: dict[str, Any], **job: Any) -> Path:
    """The run of ``home`` whose record names other things of its workload."""
    path = home / "run" / "run.json"
    record = json.loads(path.read_text())
    for key, value in workload.items():
        record["job"]["workload"][key] |= value
    record["job"] |= job
    path.write_text(json.dumps(record))
    return home / "run"


def refused(*words: object) -> None:
    """The verb ends in one line, which says what is to be named again."""
    code, out, err = in_process(*words)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "--set" in err
    assert any(key in err for key in ("loader.factory", "loader.args", "accelerator.model"))


@pytest.mark.parametrize(("kind", "side"), list(zip(CODE, ["A", "B", "its workload"], strict=True)))
def test_ab(kind: str, side: str, made: Path, home: Path) -> None:
    run = planted(home, CODE[kind](home))
    [clean] = (made / "runs").iterdir()
    places = {"A": (run,), "B": (clean, run), "its workload": (run, made / "data")}[side]
    more = ("--set-b", "reader.concurrency=2", "--budget", "5s", "--results", home / "results")
    refused("ab", *places, *more)
    assert not (home / "results").exists()


@pytest.mark.parametrize("kind", CODE)
def test_advise_confirm(kind: str, home: Path) -> None:
    rate = load_training(home / "run").job.repetitions[0].samples_per_s
    assert rate is not None
    ceilings = {
        "storage_raw": {"by": "fio", "samples_per_s": rate * 3, "bytes_per_s": rate * 60_000},
        "fetch": {"by": "reader", "samples_per_s": rate, "bytes_per_s": rate * 20_000},
        "prep": {"by": "reader", "samples_per_s": rate * 50},
        "loader": {"by": "loader", "samples_per_s": rate * 90},
    }
    run = planted(home, CODE[kind](home), ceilings=ceilings, no_confirmations="")
    refused("advise", run, "--confirm", "--budget", "5s", "--results", home / "results")
    assert not (home / "results").exists()


# Sweeps


def swept(home: Path, data: Path, **changed: Any) -> Path:
    """A sweep that was interrupted before its first trial."""
    settings: list[dict[str, Any]] = [{"reader.concurrency": n} for n in (1, 2)]
    asked: dict[str, Any] = {"axes": {"reader.concurrency": [1, 2]}, "default": settings[0]}
    asked |= {"points": [SweepPoint(settings=each, data=str(data)) for each in settings]}
    place = {"workload": str(home / "small.yaml"), "data_root": "", "data": str(data)}
    sweep = build_sweep(**place, **asked, repetitions=1)
    (home / "small.yaml").write_text(WORKLOAD)
    (home / "sweep").mkdir()
    save_sweep(home / "sweep", sweep.model_copy(update=changed))
    return home / "sweep"


def overrides(workload: dict[str, Any]) -> list[str]:
    [(group, keys)] = workload.items()
    return [f"{group}.{key}={json.dumps(value)}" for key, value in keys.items()]


def walk(workload: dict[str, Any]) -> dict[str, Any]:
    """A walk whose step names the code; its points are made while it goes on."""
    [(group, keys)] = workload.items()
    step = {"name": "x", "key": group, "values": [keys]}
    return {"walk": [step], "points": [], "default": {}, "axes": {group: [keys]}}


SWEPT: dict[str, Any] = {
    "an override": lambda home, code: {"overrides": overrides(code)},
    "the settings of a point": lambda home, code: {
        "points": [
            SweepPoint(settings={f"{group}.{k}": v for k, v in keys.items()}, data="")
            for group, keys in code.items()
        ]
    },
    "a group of settings": lambda home, code: {"points": [SweepPoint(settings=code, data="")]},
    "a step of a walk": lambda home, code: walk(code),
    "a workload's file": lambda home, code: {"workload": file_of(home, code)},
    "a workload's file by its name": lambda home, code: {"workload": named_file(home, code)},
}


def file_of(home: Path, code: dict[str, Any]) -> str:
    path = home / "evil.yaml"
    path.write_text(json.dumps({"name": "x", "dataset": "demo", "batch_size": 4,
        "accelerator": {"kind": "null"}, **code}))  # fmt: skip
    return str(path)


def named_file(home: Path, code: dict[str, Any]) -> str:
    (home / "workloads").mkdir()
    Path(file_of(home, code)).rename(home / "workloads" / "nice.yaml")
    return "nice"


@pytest.mark.parametrize(
    ("kind", "where", "word"),
    list(zip(cycle(CODE), SWEPT, cycle(["--resume", "--confirm"]), strict=False)),
)
def test_sweep(kind: str, where: str, word: str, made: Path, home: Path) -> None:
    folder = swept(home, made / "data", **SWEPT[where](home, CODE[kind](home)))
    before = (folder / "sweep.json").read_bytes()
    refused("sweep", word, folder, "--results", home / "results")
    assert (folder / "sweep.json").read_bytes() == before


def test_a_sweep_reads_what_was_checked(made: Path, home: Path) -> None:
    """Each point names a dataset in the file; the sweep's own dataset is read."""
    folder = swept(home, made / "data")
    points = load_sweep(folder).points
    elsewhere = [point.model_copy(update={"data": str(home / "elsewhere")}) for point in points]
    save_sweep(folder, load_sweep(folder).model_copy(update={"points": elsewhere}))
    code, _, err = in_process("sweep", "--resume", folder, "--quiet")
    assert code == 0, err
    found = load_sweep(folder)
    assert {point.data for point in found.points} == {str(made / "data")}
    for point in found.points:
        [run] = point.runs
        assert load_training(folder / run).job.dataset.location == str(made / "data")


# Verbs that repeat nothing


READING = {
    "report": ("report", "run"),
    "report as a page": ("report", "run", "--format", "html"),
    "report as markdown": ("report", "run", "--format", "markdown"),
    "report as CSV": ("report", "run", "--format", "csv"),
    "report as JSON": ("report", "run", "--format", "json"),
    "compare": ("compare", "run", "run"),
    "compare over time": ("compare", ".", "--over-time", "small"),
    "cost": ("cost", "run", "--host-price-per-hour", "1"),
    "whatif": ("whatif", "run", "--latency", "2x"),
    "whatif on more hosts": ("whatif", "run", "--hosts", "2"),
    "size": ("size", "small.yaml", "--accelerators", "1", "--steps", "10", "--from", "run"),
    "advise": ("advise", "."),
}


@pytest.mark.parametrize(("verb", "kind"), list(zip(READING, cycle(CODE), strict=False)))
def test_verbs_that_only_read_records(kind: str, verb: str, home: Path) -> None:
    planted(home, CODE[kind](home))
    (home / "small.yaml").write_text(WORKLOAD)
    code, _, err = in_process(*READING[verb])
    assert code in (0, 2, 3), err  # what is asserted of all is in ``home``


def test_a_recording_of_steps_names_its_model_only(made: Path, home: Path) -> None:
    steps = [0.001, 0.001]
    recording = {
        "schema_version": "1", "model": "evil_module:make", "batch_size": 2, "device_kind": "cuda",
        "mean_s": 0.001, "quantiles_s": [0.001] * 101, "steps_s": steps,
    }  # fmt: skip
    (home / "steps.json").write_text(json.dumps(recording))
    (home / "small.yaml").write_text(
        WORKLOAD.replace('{kind: "null"}', "{kind: recorded, steps: steps.json}")
    )
    run = ("run", "small.yaml", "--data", made / "data", "--results", home / "results")
    code, _, err = in_process(
        *run, "--repeat", 1, "--calibration", "0s", "--no-ablations", "--quiet"
    )
    assert code == 0, err
    [directory] = (home / "results").iterdir()
    named = load_training(directory).job.workload.accelerator.name
    assert named is not None
    assert "evil_module:make" in named


# What the user names again


def test_code_that_the_user_names_again_runs(
    made: Path, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The refusal says the words with which the record is repeated."""
    run = planted(
        home, {"loader": {"kind": "user", "factory": "tests.planted_loaders:of_files",
                          "args": {"workers": 0, "divide": True}}},
    )  # fmt: skip
    words = ("ab", run, made / "data", "--data", made / "data", "--max-rounds", 4, "--quiet")
    results = ("--results", home / "results", "--if-inconclusive", "pass")
    refused(*words, *results)
    again = ["--set", "loader.factory=tests.planted_loaders:of_files"]
    refused(*words, *results, *again)
    again += ["--set", "loader.args.workers=0"]
    refused(*words, *results, *again, "--set-a", "loader.args.divide=true")
    code, _, err = in_process(*words, *results, *again, "--set", "loader.args.divide=false")
    assert code == 0, err


def test_a_sweep_whose_code_is_named_again_goes_on(made: Path, home: Path) -> None:
    code = {"loader": {"kind": "user", "factory": "tests.planted_loaders:of_files"}}
    folder = swept(
        home, made / "data", overrides=overrides(code), axes={"loader.args.workers": [0]},
        points=[SweepPoint(settings={"loader.args.workers": 0}, data="")],
        default={"loader.args.workers": 0},
    )  # fmt: skip
    factory = ("--set", "loader.factory=tests.planted_loaders:of_files")
    refused("sweep", "--resume", folder)
    refused("sweep", "--resume", folder, *factory)
    other = ("--set", "loader.factory=tests.planted_loaders:nothing")
    assert in_process("sweep", "--resume", folder, *other, "--set", "loader.args.workers=0")[0] == 2
    done, _, err = in_process(
        "sweep", "--resume", folder, *factory, "--set", "loader.args.workers=0", "--quiet"
    )
    assert done == 0, err
    assert len(load_sweep(folder).points[0].runs) == 1

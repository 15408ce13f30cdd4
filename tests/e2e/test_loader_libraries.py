"""``loader.kind`` as a user meets it: runs, verdicts, proofs, layouts that come and go, and
refusals.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from iobench.load.libraries import LOADERS
from iobench.load.libraries.torch_map import TorchMap
from iobench.plugins import PlugIn
from iobench.runner import third_party
from iobench.runner.plan import Plan, make_plan
from iobench.settings.workload import load_workload
from tests.conftest import MakeDataset
from tests.processes import completed, document, printed, python, refused

pytestmark = pytest.mark.filterwarnings("ignore")

QUICK = "--repeat 1 --calibration 0 --no-ablations"


@pytest.fixture
def run(tmp_path: Path) -> str:
    """The beginning of a run whose results lie below tmp_path."""
    return f"run demo {QUICK} --results {tmp_path}/results"


def test_a_layout_is_made_read_cold_reported_and_cleaned(run: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    layout = data / "layouts" / "litdata"
    printed(f"generate demo --to {data} --set samples=80 --set sample_size.mean=50kB")
    run += f" --data {data} --set loader.kind=litdata --set epochs=2 --set batch_size=16"
    job = document(run)["job"]
    assert [epoch["residency_before"] for epoch in job["repetitions"][0]["epochs"]] == [0, 0]
    assert job["loader"]["layout"]["made_earlier"] is False
    assert job["loader"]["layout"]["bytes"] > 80 * 50_000 * 0.9
    again = document(run)
    assert again["job"]["loader"]["layout"]["made_earlier"] is True
    assert again["job"]["loader"]["delivery"]["delivered"] == 80
    (repetition,) = again["job"]["repetitions"]
    assert repetition["read_amplification"] is None
    assert "litdata" in repetition["not_measured"]["read_amplification"]
    kept = (data / "layouts" / "mine.txt", layout / "mine.txt")
    for path in kept:
        path.write_text("not iobench's")
    files = json.loads((layout / "layout.json").read_text())["files"]
    (layout / next(iter(files))).unlink()  # not complete, so it would be made again
    assert "mine.txt" in refused(run)
    completed("clean", data)
    assert sorted(str(path.relative_to(data)) for path in data.rglob("*")) == [
        "layouts", "layouts/litdata", "layouts/litdata/mine.txt", "layouts/mine.txt"
    ]  # fmt: skip
    assert {path.read_text() for path in kept} == {"not iobench's"}


class Forgetful(TorchMap):
    """Delivers the first sample twice, the second never, and the third with a changed byte."""

    def epoch(self, epoch: int) -> Any:
        for packed in super().epoch(epoch):
            self._spoil(packed)
            yield packed

    def _spoil(self, packed: Any) -> None:
        size = int(packed.lengths[0])
        packed.data[size : 2 * size] = packed.data[:size]
        packed.data[2 * size] ^= 1


class Endless(TorchMap):
    """Delivers its batches again and again; says in a file that it was shut down in order."""

    def epoch(self, epoch: int) -> Any:
        os.kill(os.getppid(), signal.SIGINT)
        while True:
            yield from super().epoch(epoch)

    def close(self) -> None:
        super().close()
        Path(os.environ["SHUT_DOWN"]).touch()


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two libraries with faults: ``forgetful`` and ``endless``."""
    load = LOADERS.load
    for made in (Forgetful, Endless):
        entry = PlugIn(f"{__name__}:{made.__name__}", "a planted fault")
        monkeypatch.setitem(LOADERS._entries, made.__name__.lower(), entry)
    own = {"forgetful": Forgetful, "endless": Endless}
    monkeypatch.setattr(LOADERS, "load", lambda name: own.get(name) or load(name))


@pytest.fixture
def root(make_dataset: MakeDataset) -> Path:
    return make_dataset(samples=64, sample_size={"mean": 10_000})[1]


def plan_of(root: Path, *settings: str) -> Plan:
    workload = load_workload("demo", ["batch_size=16", *settings])
    return make_plan(workload, str(root), accelerators=1, repetitions=1, seed=1)


@pytest.mark.usefixtures("planted")
def test_ctrl_c_ends_a_proof_in_order(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHUT_DOWN", str(tmp_path / "shut-down"))
    with pytest.raises(KeyboardInterrupt):
        third_party.prove(plan_of(root, "loader.kind=endless", "loader.workers=0"))
    assert (tmp_path / "shut-down").exists()


@pytest.mark.usefixtures("planted")
def test_a_library_that_delivers_something_else_is_invalid(run: str, root: Path) -> None:
    """Nothing is timed wrong here; the figures are of another job."""
    words = f"{run} --data {root} --set loader.kind=forgetful --set batch_size=64"
    doc = document(words, code=3)
    assert doc["validity"] == "invalid"
    [finding] = [finding for finding in doc["findings"] if finding["rule"] == "loader.delivery"]
    assert finding["level"] == "invalid"
    assert "2 missing, 1 repeated, 1 unknown" in finding["evidence"]


def test_all_ranks_prove_what_they_deliver(run: str, make_dataset: MakeDataset) -> None:
    shards = {"format": "tar", "samples_per_shard": 8}
    _, root = make_dataset(samples=64, sample_size={"mean": 10_000}, **shards)
    settings = "--set loader.kind=webdataset --set batch_size=8 --accelerators 2"
    proof = document(f"{run} --data {root} {settings}")["job"]["loader"]["delivery"]
    right = {"missing": 0, "repeated": 0, "unknown": 0}
    assert proof == {"delivered": 64, "of": 64, "whole_epoch": True, **right}


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize(("kind", "wrong"), [("torch-map", 0), ("forgetful", 1)])
def test_a_proof_of_a_part_does_not_tell_what_is_missing(
    kind: str, wrong: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 samples of 10 kB in batches of 16: the proof ends with the one that goes beyond 200 kB;
    each has a fault of either kind.
    """
    monkeypatch.setattr(third_party, "MAX_BYTES", 200_000)
    plan = plan_of(root, f"loader.kind={kind}", "loader.workers=1")
    proof = third_party.prove(plan)[0].model_dump()
    assert proof.pop("missing_not_measured")
    faults = {"missing": None, "repeated": 2 * wrong, "unknown": 2 * wrong}
    assert proof == {"delivered": 32, "of": 64, "whole_epoch": False, **faults}


def test_a_library_that_does_not_import_says_why(
    run: str, make_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """mosaicml-streaming needs a torchvision that was built with the torch, and more: where that is
    not so, it is there and of no use.
    """

    def loaded() -> list[str]:
        own = ("streaming", "streaming.", "iobench.load.libraries.mosaic")
        return [name for name in sys.modules if name == own[0] or name.startswith(own[1:])]

    for name in loaded():
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "path/streaming").mkdir(parents=True)
    program = "raise RuntimeError('another torch\\nmore')\n"
    (tmp_path / "path/streaming/__init__.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path / "path")
    _, root = make_dataset(format="mds", samples_per_shard=10)
    err = refused(f"{run} --data {root} --set loader.kind=mosaicml-streaming")
    for name in loaded():
        del sys.modules[name]  # monkeypatch puts back what was there
    assert "streaming is installed, but cannot be imported: RuntimeError: another torch. " in err
    assert "[mosaicml-streaming]" in err


def test_no_library_is_imported_unless_it_is_asked_for() -> None:
    look = "import json, sys, iobench.load, iobench.runner.experiment; print(*sys.modules)"
    names = {"webdataset", "datasets", "litdata", "streaming", "torchdata", "spdl", "grain"}
    found = python(look, cwd="/").split()
    assert "torch" in found
    assert names & set(found) == set()

"""``loader.kind`` as a user meets it: runs, verdicts, proofs, layouts that come and go, and
refusals.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from iobench.cli.main import main
from iobench.load.libraries.torch_map import TorchMap
from iobench.registry import LOADERS, Entry
from iobench.runner import third_party
from iobench.runner.plan import make_plan
from iobench.runner.tasks import delivery
from iobench.schema.workload import load_workload

pytestmark = pytest.mark.filterwarnings("ignore")

MB = 1_000_000
QUICK = ("--repeat", "1", "--calibration", "0.5")


@pytest.fixture
def iobench(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """``iobench("run", ...)``: (exit code, stdout, stderr), results below tmp_path."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        where = ("--results", tmp_path / "results") if arguments[0] == "run" else ()
        code = main([str(argument) for argument in (*arguments, *where, "--quiet")])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def test_a_layout_is_made_read_cold_reported_and_cleaned(iobench: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert (
        iobench(
            "generate",
            "demo",
            "--to",
            data,
            "--set",
            "samples=80",
            "--set",
            "sample_size.mean=50kB",
        )[0]
        == 0
    )
    foreign = data / "layouts" / "mine.txt"
    run = (
        "run",
        "demo",
        "--data",
        data,
        "--set",
        "loader.kind=litdata",
        "--set",
        "epochs=2",
        "--set",
        "batch_size=16",
        *QUICK,
    )
    code, out, err = iobench(*run, "--json")
    assert (code, err) == (0, "")
    doc = json.loads(out)
    assert [epoch["residency_before"] for epoch in doc["job"]["repetitions"][0]["epochs"]] == [0, 0]
    assert doc["job"]["loader"]["layout"]["made_earlier"] is False
    assert doc["job"]["loader"]["layout"]["bytes"] > 80 * 50_000 * 0.9
    code, out, _ = iobench(*run)
    assert code == 0
    assert re.search(r"^Loader litdata \(litdata [\d.]+\)$", out, re.M)
    assert re.search(r"^  read bandwidth .* of the samples' stored bytes$", out, re.M)
    shown = " ".join(out.split())
    assert re.search("read amplification not measured: [^:]*loader 'litdata'", shown)
    assert "made by an earlier run" in shown
    assert "each once" in shown
    assert "the storage has no O_DIRECT" not in shown
    kept = (foreign, data / "layouts" / "litdata" / "mine.txt")
    for path in kept:
        path.write_text("not iobench's")
    (
        data / "layouts" / "litdata" / doc_files(data)[0]
    ).unlink()  # not complete, so it would be made again
    code, out, err = iobench(*run)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "mine.txt" in err
    code, out, _ = iobench("clean", data)
    assert sorted(str(path.relative_to(data)) for path in data.rglob("*")) == [
        "layouts", "layouts/litdata", "layouts/litdata/mine.txt", "layouts/mine.txt"
    ]  # fmt: skip
    assert {path.read_text() for path in kept} == {"not iobench's"}


def doc_files(data: Path) -> list[str]:
    return list(json.loads((data / "layouts" / "litdata" / "layout.json").read_text())["files"])


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


def test_ctrl_c_ends_a_proof_in_order(
    make_dataset: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(
        LOADERS._entries, "endless", Entry(target=f"{__name__}:Endless", summary="a planted fault")
    )
    monkeypatch.setattr(
        LOADERS,
        "load",
        lambda name, load=LOADERS.load: Endless if name == "endless" else load(name),
    )
    monkeypatch.setenv("SHUT_DOWN", str(tmp_path / "shut-down"))
    _, root = make_dataset(samples=64, sample_size={"mean": 10_000})
    workload = load_workload("demo", ["batch_size=16", "loader.kind=endless", "loader.workers=0"])
    plan = make_plan(workload, str(root), accelerators=1, repetitions=1, seed=1)
    with pytest.raises(KeyboardInterrupt):
        third_party.prove(plan)
    assert (tmp_path / "shut-down").exists()


def test_a_library_that_delivers_something_else_is_invalid(
    iobench: Any, make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is timed wrong here; the figures are of another job."""
    monkeypatch.setitem(
        LOADERS._entries,
        "forgetful",
        Entry(target=f"{__name__}:Forgetful", summary="a planted fault"),
    )
    monkeypatch.setattr(
        LOADERS,
        "load",
        lambda name, load=LOADERS.load: Forgetful if name == "forgetful" else load(name),
    )
    _, root = make_dataset(samples=64, sample_size={"mean": 10_000})
    code, out, _ = iobench(
        "run",
        "demo",
        "--data",
        root,
        "--set",
        "loader.kind=forgetful",
        "--set",
        "batch_size=64",
        *QUICK,
        "--json",
    )
    doc = json.loads(out)
    assert doc["validity"] == "invalid"
    [finding] = [finding for finding in doc["findings"] if finding["rule"] == "loader.delivery"]
    assert finding["level"] == "invalid"
    assert "2 missing, 1 repeated, 1 unknown" in finding["evidence"]
    assert code != 0


@pytest.mark.parametrize("kind", ["torch-map", "webdataset", "grain"])
def test_all_ranks_prove_what_they_deliver(kind: str, iobench: Any, make_dataset: Any) -> None:
    shards = {"format": "tar", "samples_per_shard": 8} if kind == "webdataset" else {}
    _, root = make_dataset(samples=64, sample_size={"mean": 10_000}, **shards)
    settings = ("--set", f"loader.kind={kind}", "--set", "batch_size=8", "--accelerators", "2")
    code, out, err = iobench("run", "demo", "--data", root, *settings, *QUICK, "--json")
    assert (code, err) == (0, "")
    proof = json.loads(out)["job"]["loader"]["delivery"]
    assert proof == {
        "delivered": 64,
        "missing": 0,
        "repeated": 0,
        "unknown": 0,
        "of": 64,
        "whole_epoch": True,
    }


@pytest.mark.parametrize(("kind", "wrong"), [("torch-map", 0), ("forgetful", 1)])
def test_a_proof_of_a_part_does_not_tell_what_is_missing(
    kind: str, wrong: int, make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 samples of 10 kB in batches of 16: the proof ends with the one that goes beyond 200 kB;
    each has a fault of either kind.
    """
    monkeypatch.setitem(
        LOADERS._entries,
        "forgetful",
        Entry(target=f"{__name__}:Forgetful", summary="a planted fault"),
    )
    monkeypatch.setattr(
        LOADERS,
        "load",
        lambda name, load=LOADERS.load: Forgetful if name == "forgetful" else load(name),
    )
    monkeypatch.setattr(delivery, "MAX_BYTES", 200_000)
    _, root = make_dataset(samples=64, sample_size={"mean": 10_000})
    workload = load_workload("demo", ["batch_size=16", f"loader.kind={kind}", "loader.workers=1"])
    plan = make_plan(workload, str(root), accelerators=1, repetitions=1, seed=1)
    proof = third_party.prove(plan)[0].model_dump()
    why = proof.pop("missing_not_measured")
    assert why
    parts = {
        "delivered": 32,
        "missing": None,
        "repeated": 2 * wrong,
        "unknown": 2 * wrong,
        "of": 64,
        "whole_epoch": False,
    }
    assert proof == parts


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("loader.kind=webdatset",), "did you mean"),
        (("loader.kind=webdataset",), "format=tar"),
        (("loader.kind=torch-map", "reader.direct=true"), "reader.direct"),
    ],
)
def test_refusals_are_one_line(
    settings: tuple[str, ...], words: str, iobench: Any, make_dataset: Any
) -> None:
    _, root = make_dataset()
    code, out, err = iobench(
        "run", "demo", "--data", root, *(part for each in settings for part in ("--set", each))
    )
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_a_library_that_is_not_installed_names_its_extra(
    iobench: Any, make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "spdl.pipeline", None)
    monkeypatch.delitem(sys.modules, "iobench.load.libraries.spdl_pipeline", raising=False)
    _, root = make_dataset()
    code, _, err = iobench("run", "demo", "--data", root, "--set", "loader.kind=spdl")
    assert code == 2
    assert "[spdl]" in err


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({}, "'streaming'"),
        (
            {"__init__.py": "import not_to_be_had"},
            "ModuleNotFoundError: No module named 'not_to_be_had'",
        ),
        (
            {"__init__.py": "raise RuntimeError('another torch\\nmore')"},
            "streaming is installed, but cannot be imported: RuntimeError: another torch. ",
        ),
        (
            {"__init__.py": "", "base/constant.py": ""},
            "ImportError: cannot import name '",
        ),
    ],
)
def test_a_library_that_does_not_import_says_why(
    files: dict[str, str],
    line: str,
    iobench: Any,
    make_dataset: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """mosaicml-streaming needs a torchvision that was built with the torch, and more: where that is
    not so, it is there and of no use.
    """
    import sys

    def loaded() -> list[str]:
        return [
            name
            for name in sys.modules
            if name.partition(".")[0] == "streaming"
            or name.startswith("iobench.load.libraries.mosaic")
        ]

    for name in loaded():
        monkeypatch.delitem(sys.modules, name)
    if not files:
        monkeypatch.setitem(sys.modules, "streaming", None)
    for name, text in files.items():
        path = tmp_path / "path" / "streaming" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    monkeypatch.syspath_prepend(tmp_path / "path")
    _, root = make_dataset(format="mds", samples_per_shard=10)
    code, out, err = iobench(
        "run", "demo", "--data", root, "--set", "loader.kind=mosaicml-streaming"
    )
    for name in loaded():
        del sys.modules[name]  # monkeypatch puts back what was there
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert line in err
    assert "[mosaicml-streaming]" in err


def test_no_library_is_imported_unless_it_is_asked_for() -> None:
    import subprocess
    import sys

    look = (
        "import sys, iobench.load, iobench.runner.experiment; print([n for n in sys.modules if "
        "n.split('.')[0] in {names!r}])"
    )
    names = {"webdataset", "datasets", "litdata", "streaming", "torchdata", "spdl", "grain"}
    found = subprocess.run(
        [sys.executable, "-c", look.format(names=names)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ},
        cwd="/",
    )
    assert found.stdout.strip() == "[]"

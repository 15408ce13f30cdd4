"""Make the golden files of the installed version: ``python tests/golden/make.py``.

Everything is made with relative paths in a neutral directory, and the working files of fio are
removed, since no verb reads them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

DATASETS = {
    "tar": [],
    "tar-zstd": ["--set", "codec=zstd:3"],
    "files": ["--set", "format=files", "--set", "samples_per_shard=null"],
    "parquet": ["--set", "format=parquet"],
    "hdf5": ["--set", "format=hdf5"],
    "mds": ["--set", "format=mds"],
    "tfrecord": ["--set", "format=tfrecord"],
    "tokens": [
        *("--set", "format=tokens"),
        *("--set", "sample_size={distribution: constant, mean: 1026}"),
    ],
}
SLOW = ("--set", "accelerator.step_time=200ms")
CHECKPOINT = ("llama3-8b", "--scale", "1/200000", "--to", "ck")
BESIDE = (
    *("--checkpoint", "llama3-8b", "--checkpoint-scale", "1/100000"),
    *("--checkpoint-to", "ck", "--checkpoint-every", "3"),
)
WEIGHTS = ("qwen3-0.6b-weights", "--to", "weights", "--layers", "1", "--vocabulary", "64")
LOAD = (
    *("throttled+weights?bandwidth=100MB", "--loader", "direct,eager", "--replicas", "1,2"),
    *("--engine-start", "45s", "--copy-to", "copied"),
)
MADE = ("--results", "made")
SWEEP = ("--samples", "24", "--sweep", "loader.workers=1,2", "--sweep", "reader.concurrency=1,4")


def main() -> None:
    import iobench

    target = HERE / iobench.__version__
    if target.exists():
        sys.exit(f"{target} is there already, and golden files are never changed")
    with tempfile.TemporaryDirectory(prefix="golden") as scratch:
        os.chdir(scratch)
        for name in ("small.yaml", "smallrun.yaml", "smallserve.yaml"):
            shutil.copy(HERE / name, name)
        datasets()
        runs()
        checkpoints()
        for folder in Path().glob("**/fio"):
            shutil.rmtree(folder)
        shutil.copytree(scratch, target)


def call(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "iobench", *arguments], check=True, stdout=sys.stderr)


def datasets() -> None:
    for name, options in DATASETS.items():
        call("generate", "./small.yaml", "--to", f"datasets/{name}", *options)
    call("scan", "datasets/tar/data", "--save", "datasets/scanned.yaml")
    half = Path("datasets/half")
    shutil.copytree("datasets/tar", half)
    for name in ("manifest.json", "samples.arrow", "shards.arrow", "data/small-000002.tar"):
        (half / name).unlink()


def runs() -> None:
    tar = "datasets/tar"
    run("calibrated", tar, "--repeat", "3", "--calibration", "0.1s")
    run("find-max", tar, "--repeat", "2", "--find-max", *SLOW)
    run("library", "datasets/files", "--repeat", "1", "--set", "loader.kind=torch-map")
    run("beside-saves", tar, "--repeat", "1", "--accelerators", "2", *BESIDE)
    run("throttled", f"throttled+{tar}?latency=20ms&bandwidth=50MB", "--calibration", "0.2s")
    run("failed", f"faulty+{tar}?fail_at=20", "--repeat", "4", expect=1)
    run("interrupted", tar, "--repeat", "30", *SLOW, expect=130)
    for name, options in {"stream": [], "dcp-async": ["--writer", "dcp-async"]}.items():
        call("checkpoint", *CHECKPOINT, "--repeat", "2", *options, *MADE)
        next(Path("made").iterdir()).rename(f"runs/checkpoint-{name}")
    call("generate", *WEIGHTS)
    call("load", *LOAD, *MADE)
    next(Path("made").iterdir()).rename("runs/model-load")
    slow = f"throttled+{tar}?latency=20ms"
    call("serve", "./smallserve.yaml", "--data", slow, "--find-max", "--duration", "4s", *MADE)
    next(Path("made").iterdir()).rename("runs/serving")
    options = ("--to", "swept", *SWEEP, "--repeat", "2", "--calibration", "0.1s")
    call("sweep", "./smallrun.yaml", *options, *MADE)
    next(Path("made").iterdir()).rename("sweep")
    for folder in ("made", "swept", "ck", "weights"):
        shutil.rmtree(folder, ignore_errors=True)


def run(name: str, data: str, *options: str, expect: int = 0) -> None:
    given = options if "--calibration" in options else (*options, "--calibration", "0")
    command = [sys.executable, "-m", "iobench", "run", "./smallrun.yaml", "--data", data, *given]
    process = subprocess.Popen([*command, "--results", "made"], stdout=sys.stderr)
    if expect == 130:
        time.sleep(5)
        process.send_signal(signal.SIGTERM)
    if process.wait() != expect:
        sys.exit(f"{name}: ended with {process.returncode}, expected {expect}")
    Path("runs").mkdir(exist_ok=True)
    next(Path("made").iterdir()).rename(f"runs/{name}")


def checkpoints() -> None:
    from iobench.checkpoint.catalog import CheckpointRoot
    from tests.checkpoints import save
    from tests.golden.tiny import STEP, WRITERS, tiny_state

    for writer in WRITERS:
        root = CheckpointRoot.open(f"checkpoints/{writer}")
        root.claim()
        save(writer, root, STEP, tiny_state())


if __name__ == "__main__":
    main()

"""Loading npz files against DLIO, the generator of MLPerf Storage's load, interleaved A B A B:
``python -m tools.bench.dlio --dlio /path/to/bin/dlio_benchmark [--case NAME] [--repeat N]``.

Both sides read the same files from the page cache, in batches of the same size, with as many
workers, one read at a time in each, as many batches ahead, and no computation. A figure is the
bytes of the epochs over the time from the beginning of each epoch to its end. DLIO's times are
those that it writes for each epoch, not the rate that it reports. Neither side's first epoch is
counted, since it starts the workers.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from iobench.judge.figures.events import epoch_ends_ns, rank_epochs
from iobench.load.reader import BatchReader
from iobench.runner.loading import run_phase
from iobench.runner.phase import Phase
from iobench.settings.workload import AcceleratorSpec, LoaderSpec, ReaderSpec
from iobench.storage.local.storage import LocalStorage
from tools.bench.sides import MIB, SCRATCH, Case, Data, Figure, Made, compare, flags_of, in_memory

LEFT_OUT = (
    "DLIO is left out. To compare with it, install github.com/argonne-lcf/dlio_benchmark in an "
    "environment of its own: make bench DLIO=/path/to/bin/dlio_benchmark"
)

EPOCHS = 5
"""Epochs of iobench that are counted. Cases name those of DLIO, some of which take a minute."""

AHEAD = 2
"""Batches that all workers together have in advance: DLIO's ``prefetch_size``, by default."""


def through_iobench(made: Made, *, workers: int, batch: int, crop: int | None) -> Figure:
    """Whole epochs through the ring, into the memory of the training process."""
    reading = ReaderSpec(direct=False, concurrency=1, crop=crop)
    phase = Phase(
        name="bench",
        reader=BatchReader(made.manifest, LocalStorage(made.root, direct=False), reading),
        reading=reading,
        loading=LoaderSpec(workers=workers, prefetch_factor=math.ceil(AHEAD / workers)),
        accelerator=AcceleratorSpec(kind="null"),
        accelerators=1,
        batch_size=batch,
        seed=int(time.time()),
        epochs=1 + EPOCHS,
    )
    outcome = run_phase(phase)
    _, *counted = epoch_ends_ns(list(rank_epochs(outcome.events()))).values()
    size = made.manifest.header.stored_bytes
    cpu_s_per_gb = outcome.cpu_s / (size * (1 + EPOCHS) / 1e9)
    return Figure(size * EPOCHS / (sum(counted) / 1e9), cpu_s_per_gb)


def through_dlio(
    program: Path, files: list[Path], *, size: int, workers: int, epochs: int, **settings: Any
) -> Figure:
    """Whole epochs of DLIO over these files. Its CPU time is inconclusive apart from its
    start-up's."""
    with tempfile.TemporaryDirectory(dir=files[0].parents[2]) as place:
        folder = Path(place)
        folders = {file.parent for file in files}
        (folder / "train").symlink_to(files[0].parents[1])
        (folder / "valid").mkdir()
        chosen = {
            "workflow.evaluation": False,
            "dataset.data_folder": folder,
            "dataset.num_files_train": len(files),
            "dataset.num_subfolders_train": len(folders),
            "dataset.num_files_eval": 0,
            "reader.read_threads": workers,
            "reader.prefetch_size": AHEAD,
            "train.epochs": 1 + epochs,
            "train.computation_time": 0.0,
            "output.folder": folder,
            **settings,
        }
        words = [f"++workload.{key}={value}" for key, value in chosen.items()]
        ended = subprocess.run(
            [program, "workload=default", f"hydra.run.dir={folder}", *words],
            capture_output=True,
            text=True,
        )
        if ended.returncode:
            raise SystemExit(f"{program} failed:\n{ended.stdout}{ended.stderr}")
        found = json.loads((folder / "0_per_epoch_stats.json").read_text(encoding="utf-8"))
    _, *counted = (wall_s(found[str(number)]) for number in range(1, 2 + epochs))
    return Figure(size * epochs / sum(counted), None)


def wall_s(epoch: dict[str, Any]) -> float:
    """Seconds of an epoch of DLIO, which has one block if there are no checkpoints in it."""
    begin, end = (datetime.fromisoformat(epoch["block1"][name]) for name in ("start", "end"))
    return (end - begin).total_seconds()


def loading(
    data: Data,
    program: Path,
    *,
    name: str,
    samples: int,
    sample: int,
    batch: int,
    workers: int,
    epochs: int,
    resize: int | None = None,
) -> Case:
    """``resize``: bytes of each sample that are passed on; None: all of it."""
    size = {"mean": sample}
    made = data.dataset("npz", samples=samples, sample_size=size, format="files", content="npz")
    files = made.files
    in_memory(files)
    passed = {"dataset.record_length_bytes_resize": resize} if resize else {}
    return Case(
        f"{name}, warm, batches of {batch}, {workers} workers",
        "-",
        lambda: through_iobench(made, workers=workers, batch=batch, crop=resize),
        lambda: through_dlio(
            program,
            files,
            size=made.manifest.header.stored_bytes,
            workers=workers,
            epochs=epochs,
            **{"dataset.record_length_bytes": sample, "reader.batch_size": batch, **passed},
        ),
        "DLIO",
    )


# The bytes that are passed on are those of MLPerf Storage's workload unet3d-h100.
unet3d = partial(
    loading,
    name="npz of 48 MiB (UNet3D)",
    samples=16,
    sample=48 * MIB,
    batch=2,
    epochs=5,
    resize=2 * MIB,
)
resnet = partial(
    loading,
    name="npz of 115 kB (ResNet-50)",
    samples=4800,
    sample=114_660,
    batch=400,
    epochs=1,
)

CASES = {
    f"{name}-{workers}": partial(case, workers=workers)
    for name, case in (("unet3d", unet3d), ("resnet", resnet))
    for workers in (1, 2, 4)
}


def cases(names: Iterable[str], program: Path, directory: Path) -> Iterator[Case]:
    """Each case with files of its own, which are removed after it."""
    for name in names:
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=directory) as root:
            yield CASES[name](Data(Path(root).resolve()), program)


def main() -> int:
    parser = flags_of(__doc__, CASES, repeat=3)
    parser.add_argument("--dlio", default="", metavar="PATH", help="DLIO's program dlio_benchmark")
    args = parser.parse_args()
    if not args.dlio:
        print(LEFT_OUT)
        return 0
    program = shutil.which(args.dlio)
    if program is None:
        parser.error(f"--dlio: {args.dlio} is not a program")
    names = args.case or ["unet3d-2", "resnet-2"]
    # The first epoch of each side is its warm-up.
    compare(cases(names, Path(program), args.dir), args.repeat, warm_up=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the instruments of ``run --loader`` cost: ``python tests/bench/user_loader.py``.

A loader of batches of 64 samples of 115 kB runs bare and under the instruments, in turns in one
process. The figure is the ratio of the CPU times of this process and of the loader's workers, for
the median and the quartiles of the turns.
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from iobench.load.user.loader import UserLoader
from iobench.schema.workload import LoaderSpec
from tests import planted_loaders

BATCH, SAMPLE, FILES = 64, 115_000, 1024
TURNS = 15


def cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended.

    By getrusage(2), in microseconds: times(2) counts in ticks of 10 ms, a seventh of a turn.
    """
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def instrumented(data: str, arguments: dict[str, Any]) -> UserLoader:
    spec = LoaderSpec(kind="user", factory="tests.planted_loaders:of_files", args=arguments)
    return UserLoader(spec, data=data, root=data, batch_size=BATCH, stored_bytes=SAMPLE)


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as data:
        for number in range(FILES):
            (Path(data) / f"{number:04}.jpg").write_bytes(os.urandom(SAMPLE))
        for workers in (0, 1, 2):
            arguments = {"workers": workers, "batch": BATCH, "size": SAMPLE}
            loaders = (planted_loaders.of_files(data, **arguments), instrumented(data, arguments))
            ratios = []
            for turn in range(TURNS + 1):
                spent = [0.0, 0.0]
                for place in (0, 1) if turn % 2 else (1, 0):
                    loader = loaders[place]
                    began = cpu_s()
                    for _ in loader:
                        pass
                    time.sleep(0.05)  # workers that have ended are counted when they are reaped
                    spent[place] = cpu_s() - began
                ratios.append(spent[1] / spent[0])
            low, middle, high = statistics.quantiles(ratios[1:], n=4)  # the first turn is warm-up
            print(
                f"{workers} workers: {middle:.3f} x [{low:.3f}, {high:.3f}] the CPU time of the "
                f"bare loader, {TURNS} turns of {FILES // BATCH} batches"
            )


if __name__ == "__main__":
    main()

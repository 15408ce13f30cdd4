"""The threads of torch in a rank, and the environment variables that would set other numbers.

Launchers set some of them without a word: torchrun sets OMP_NUM_THREADS=1 where there are several
ranks and the variable is not set (https://pytorch.org/docs/stable/elastic/run.html).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
)
"""Variables that change how many threads compute, and where they run."""


def set_threads(threads: int) -> int:
    """Let OpenMP and MKL compute with so many threads, and return how many torch then has.

    It replaces what OMP_NUM_THREADS and MKL_NUM_THREADS have said when the process started.
    """
    torch.set_num_threads(threads)
    return torch.get_num_threads()


def told_by(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Those of ``VARIABLES`` that are set, with their values."""
    given = os.environ if environment is None else environment
    return {name: given[name] for name in VARIABLES if name in given}

"""A script that ends in the middle of an epoch ends quietly, whatever reads for it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from iobench.storage.local.uring import refused

pytestmark = pytest.mark.usefixtures("nothing_left")

SCRIPT = """
import iobench
loader = iobench.make_loader({data!r}, batch_size=2, {more})
batches = iter(loader)
next(batches)
print("end")
"""

WAYS = {
    "read ahead": "num_workers=0, reader={'engine': 'threads', 'concurrency': 16}",
    "io_uring": "num_workers=0, reader={'engine': 'io_uring', 'concurrency': 16}",
    "by workers": "num_workers=2",
    "by threads": "loader={'workers': 2, 'transport': 'thread'}, collate='list'",
    "by a library": "loader={'kind': 'torch-map', 'workers': 0}",
}


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=() if way == "by workers" else pytest.mark.slow) for way in WAYS],
)
def test_a_script_that_ends_with_an_iterator_in_use_says_nothing(
    way: str, make_dataset: Any
) -> None:
    if "io_uring" in WAYS[way] and refused():
        pytest.skip("the kernel refuses io_uring")
    _, root = make_dataset()
    script = SCRIPT.format(data=str(root), more=WAYS[way])
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")

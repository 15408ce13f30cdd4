"""A million samples are mapped arrays: loaded without being parsed, shared with workers, shuffled
as an index.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from iobench.record.manifest import (
    MANIFEST,
    SAMPLE_COLUMNS,
    SAMPLES,
    SHARD_COLUMNS,
    SHARDS,
    Header,
    hash_bytes,
    write_table,
)
from iobench.settings.base import build
from iobench.settings.dataset import DatasetSpec
from tests.processes import python

MILLION = 10**6


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifest of a million files (which are not there)."""
    root = tmp_path_factory.mktemp("million")
    rows = np.arange(MILLION)
    one = {name: np.ones(MILLION, dtype) for name, dtype in SAMPLE_COLUMNS.items()}
    samples = write_table(SAMPLE_COLUMNS, {**one, "shard": rows, "offset": rows * 0})
    shards = write_table(
        SHARD_COLUMNS, {**{n: np.ones(MILLION, t) for n, t in SHARD_COLUMNS.items()}, "first": rows}
    )
    spec = build(
        DatasetSpec,
        {"name": "million", "samples": MILLION, "sample_size": {"mean": 1000}},
        where="test",
    )
    header = Header(
        generator="test",
        id="0" * 32,
        created="2026-01-01T00:00:00+00:00",
        spec=spec,
        samples=MILLION,
        shards=MILLION,
        stored_bytes=MILLION,
        sample_bytes=MILLION,
        tables={SAMPLES: hash_bytes(samples), SHARDS: hash_bytes(shards)},
    )
    (root / SAMPLES).write_bytes(samples)
    (root / SHARDS).write_bytes(shards)
    (root / MANIFEST).write_text(header.model_dump_json())
    return root


def test_memory_stays_small_in_the_process_and_its_workers(million: Path) -> None:
    """Peak memory of a whole process that loads the manifest and plans an epoch, and what a forked
    child adds (private pages).
    """
    code = f"""
import os
from pathlib import Path
def status(key):
    return int(next(l.split()[1] for l in open('/proc/self/status') if l.startswith(key)))
from iobench.data.dataset import load_manifest
manifest = load_manifest({str(million)!r})
from iobench.load.order import epoch_order
firsts, counts = manifest.shards['first'], manifest.shards['samples']
order = epoch_order(firsts, counts, sequential=False, shuffle=True, seed=1, epoch=0)
assert len(order) == {MILLION}
print(status('VmHWM'), flush=True)
if os.fork() == 0:
    total = sum(int(manifest.samples['size'][i]) for i in order[:20000].tolist())
    dirty = [l for l in open('/proc/self/smaps_rollup') if l.startswith('Private_Dirty')]
    private = sum(int(l.split()[1]) for l in dirty)
    print(private, flush=True)
    os._exit(0)
os.wait()
"""
    peak_kb, child_kb = map(int, python(code).split())
    assert peak_kb < 200_000
    assert child_kb < 30_000

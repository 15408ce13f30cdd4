"""A storage of known write speed must yield the known checkpoint times and the interval that
follows from them.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from iobench.base.errors import UsageError
from iobench.record.checkpoint import CheckpointSpec, Meaning, Study, Training
from iobench.runner.budget import Budget
from iobench.runner.checkpoint import run_study
from iobench.runner.checkpoint_pilot import Small, expected
from iobench.runner.checkpoint_plan import make_study_plan
from iobench.runner.options import StudyOptions
from iobench.settings.base import build

BANDWIDTH = 8e6
"""A save takes seconds, beside which its own work is short on a slow machine, too."""
MTBF_S = 36_000.0


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory: the disk below a throttled storage must not add times of its own."""
    path = Path(tempfile.mkdtemp(prefix=f"iobench-{os.getpid()}-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


def study(
    memory: Path,
    *,
    read: float = 1e12,
    write: float = BANDWIDTH,
    budget: Budget | None = None,
    **settings: object,
) -> Study:
    spec = build(
        CheckpointSpec,
        {"model": "llama3-8b", "scale": "1/4096", "count": 3, "restores": 1, **settings},
        where="test",
    )
    rates = f"write_bandwidth={int(write)}&bandwidth={int(read)}"
    url = f"throttled+{memory / 'ckpt'}?{rates}"
    doc, _ = run_study(
        make_study_plan(spec, url, Training(mtbf_s=MTBF_S)),
        StudyOptions(results=memory / "results", budget=budget or Budget()),
    )
    return doc.job


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.nightly), 2])
@pytest.mark.parametrize("writer", ["stream", pytest.param("torch", marks=pytest.mark.nightly)])
def test_durable_time_and_interval_follow_from_the_bandwidth(
    memory: Path, writer: str, ranks: int
) -> None:
    """Ranks share the link, so that the job takes the same time however many write."""
    found = study(memory, writer=writer, ranks=ranks)
    expected = found.saves[0].bytes / BANDWIDTH
    assert found.figures["durable_s"].median == pytest.approx(expected, rel=0.05)
    assert found.figures["blocked_s"].median == pytest.approx(expected, rel=0.05)
    assert min(save.durable_s or 0 for save in found.saves) > 0.98 * expected
    assert found.write_bytes_per_s == pytest.approx(BANDWIDTH, rel=0.06)
    whole = found.full_bytes / BANDWIDTH
    meaning = found.meaning
    assert isinstance(meaning, Meaning)
    assert meaning.blocked_s == pytest.approx(whole, rel=0.05)
    assert meaning.young_s == pytest.approx(math.sqrt(2 * whole * MTBF_S), rel=0.05)
    assert meaning.needed_write_bytes_per_s == pytest.approx(
        found.full_bytes / (2 * MTBF_S * 0.01**2), rel=0.01
    )
    assert not meaning.within_budget


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_saves_of_what_changes_take_their_bytes_and_a_restore_those_of_both(
    memory: Path, ranks: int
) -> None:
    """The planted rates predict the save of the whole state, the others, and the restore."""
    found = study(memory, ranks=ranks, changed="1/4", read=4 * BANDWIDTH)
    assert found.base is not None
    assert found.state_bytes is not None
    whole, part = found.base.bytes / BANDWIDTH, found.saves[0].bytes / BANDWIDTH
    assert found.base.durable_s == pytest.approx(whole, rel=0.05)
    assert part < 0.26 * whole
    assert found.figures["durable_s"].median == pytest.approx(part, rel=0.1)
    assert found.figures["restore_s"].median == pytest.approx((whole + part) / 4, rel=0.1)
    meaning = found.meaning
    assert isinstance(meaning, Meaning)
    size = 8_030_261_248 * 14 * found.bytes / found.state_bytes  # at scale 1
    assert meaning.blocked_s == pytest.approx(size / BANDWIDTH, rel=0.1)
    both = size * (1 + found.state_bytes / found.bytes)
    assert meaning.restore_s == pytest.approx(both / BANDWIDTH / 4, rel=0.1)


@pytest.mark.nightly
def test_an_asynchronous_writer_blocks_for_the_copy_and_writes_at_the_bandwidth(
    memory: Path,
) -> None:
    """Each save is over before the next one is due."""
    found = study(memory, writer="dcp-async", steps=100, step_time=0.05)
    alone = found.saves[0].bytes / BANDWIDTH
    assert (
        0.98 * alone < found.figures["durable_s"].median < 1.25 * alone + 0.5
    )  # beside it the training computes
    assert found.figures["blocked_s"].max < 0.5 * alone
    meaning = found.meaning
    assert isinstance(meaning, Meaning)
    assert meaning.interval_s >= meaning.durable_s - meaning.blocked_s


@pytest.mark.nightly
def test_a_save_that_is_not_over_when_the_next_is_due_blocks_it(memory: Path) -> None:
    """Steps for a tenth of a save's time: the second save waits for the rest of the first."""
    found = study(memory, writer="dcp-async", count=3, steps=1, step_time=0.06)
    first, *later = found.saves
    alone = first.bytes / BANDWIDTH
    assert first.waited_s == pytest.approx(0, abs=0.05)
    for save in later:
        assert save.waited_s == pytest.approx(alone - 0.06, rel=0.25)
        assert save.blocked_s >= (save.waited_s or 0)


def test_two_small_saves_tell_what_a_byte_takes_without_what_each_save_takes() -> None:
    """Each takes 2 s, and a byte a microsecond to save, and half of that to restore."""
    small = [Small(n, 2 + n / 1e6, 2 + n / 2e6) for n in (1_000_000, 4_000_000)]
    told = expected(small, 30_000_000)
    assert (told.save_s, told.restore_s) == pytest.approx((32.0, 17.0))
    alone = expected(small[:1], 30_000_000)
    assert (alone.save_s, alone.restore_s) == pytest.approx((3.0, 2.5))
    assert expected([], 30_000_000).save_s == 0


def test_a_save_that_takes_longer_than_the_budget_is_refused_before_it(memory: Path) -> None:
    """A save of 210 MB takes 26 s at this bandwidth."""
    with pytest.raises(UsageError, match="too short for one save of this study") as refused:
        study(memory, budget=Budget(seconds=8.0), scale="1/512")
    least = int(re.findall(r"at least (\d+)s", str(refused.value))[0])
    assert least >= 0.8 * 26
    saved = json.loads(next((memory / "results").glob("*/run.json")).read_text())
    assert saved["job"]["saves"] == []


@pytest.mark.nightly
def test_restores_that_the_budget_has_no_time_for_are_left_out_with_the_reason(
    memory: Path,
) -> None:
    """The planted reads take 100 times as long as the writes."""
    found = study(
        memory,
        budget=Budget(seconds=20.0),
        scale="1/512",
        count=2,
        restores=2,
        read=BANDWIDTH / 4,
        write=100 * BANDWIDTH,
    )
    assert found.saves
    assert found.restores == []
    assert "no time" in found.not_measured["restore_bytes_per_s"]

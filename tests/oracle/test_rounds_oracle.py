"""How long a ceiling's window is, where one round of the workers outlasts it."""

from __future__ import annotations

from typing import Any

from iobench.load.reader import BatchReader
from iobench.runner.loading import run_phase
from iobench.runner.phase import Phase
from iobench.schema.workload import AcceleratorSpec, LoaderSpec, ReaderSpec
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.throttled import ThrottledStorage


def test_a_short_window_holds_three_whole_rounds(make_dataset: Any) -> None:
    """Each batch is one read of 0.3 s, the window is 0.2 s: after the first round it is over, and
    nothing could be rated.
    """
    manifest, path = make_dataset(samples=40, format="files")
    reading = ReaderSpec(direct=False, concurrency=1)
    outcome = run_phase(
        Phase(
            name="calibrate.fetch",
            reader=BatchReader(
                manifest,
                ThrottledStorage(LocalStorage(path), latency_s=0.3),
                reading,
                bytes_only=True,
            ),
            reading=reading,
            loading=LoaderSpec(workers=2, transport="null"),
            accelerator=AcceleratorSpec(kind="null"),
            accelerators=1,
            batch_size=1,
            seed=1,
            limit_s=0.2,
            whole_rounds=True,
        )
    )
    assert int(outcome.columns[0]["steps"].sum()) == 3 * 2

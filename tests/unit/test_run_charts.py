"""The charts of a run's page show the record's figures: demands, ranks, workers, CPU, the host."""

from __future__ import annotations

from iobench.report.page.chart import chart_of
from iobench.report.run import sections
from iobench.report.sections import Items, Section, Table
from tests.unit.conftest import build_events, build_run


def by_id(found: list[Section]) -> dict[str, Section]:
    return {each.id: each for each in found}


def worker(rank: int, number: int, busy_s: float) -> dict[str, object]:
    return {
        "rank": rank,
        "worker": number,
        "batches": 10,
        "samples": 80,
        "bytes_read": 1000,
        "sample_bytes": 800,
        "read_s": 0.25 * busy_s,
        "prep_s": 0.75 * busy_s,
        "cpu_s": busy_s,
    }


def rank_time(rank: int, busy_s: float) -> dict[str, float]:
    return {"rank": rank, "wall_s": 100.0, "fill_s": 0.0, "busy_s": busy_s, "sync_s": 100 - busy_s}


EVENTS = build_events(
    [
        {"step": step, "start": 0.1 * step, "wait": 0.02, "busy": 0.08, "read": 0.01, "prep": 0.03}
        for step in range(50)
    ]
)


def test_the_slowest_worker_is_the_first_bar_and_the_others_are_counted() -> None:
    loads = [worker(rank, 0, 2.0 if rank == 77 else 1.0) for rank in range(100)]
    found = by_id(
        sections(
            build_run(
                repetitions=1,
                repetition={
                    "workers": loads,
                    "workers_left_out": 300,
                    "ranks": [rank_time(0, 60.0)],
                },
            ),
            EVENTS,
        )
    )
    table = found["workers"]
    assert isinstance(table, Table)
    (bars,), busy = table.charts, table.at("busy_per_batch_s")
    assert bars.rows == tuple(range(16))
    assert table.rows[0].cells[0].value == 77
    assert [row.cells[busy].value for row in table.rows[:2]] == [0.2, 0.1]
    drawn = chart_of(table, bars, "c")
    assert drawn.index("rank 77, worker 0") < drawn.index("rank 0, worker 0")
    assert drawn.count("<rect") == 16
    assert len(table.rows) + table.more == 400
    assert "not-drawn" not in found


def test_a_record_without_workers_says_why_they_are_not_shown() -> None:
    """Those of an older version, and those of a library, which does not tell its times either."""
    ranks = {"ranks": [rank_time(0, 60.0)]}
    old = by_id(sections(build_run(repetitions=1, repetition=ranks), EVENTS))
    assert "workers" not in old
    assert isinstance(old["not-drawn"], Items)
    assert len(old["not-drawn"].items) == 1
    untold = {**EVENTS, "read_ns": 0 * EVENTS["read_ns"], "prep_ns": 0 * EVENTS["prep_ns"]}
    library = build_run(repetitions=1, repetition=ranks, loader={"kind": "spdl"})
    found = by_id(sections(library, untold))["not-drawn"]
    assert isinstance(found, Items)
    assert len(found.items) == 2
    assert all("spdl" in item.text for item in found.items)

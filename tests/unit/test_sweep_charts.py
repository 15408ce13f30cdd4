"""The charts of sweeps: every figure in its square, the front as brute force finds it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.ask.tuning.points import front
from iobench.report import sweep
from iobench.report.page.chart import chart_of, shades_of
from iobench.report.sections import Section, Table
from tests.unit.conftest import build_sweep

Points = list[dict[str, Any]]


def point(rate: float, **settings: object) -> dict[str, Any]:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return {"settings": named, "figures": [rate, rate * 1.1], "runs": ["a", "b"]}


def charts(points: Points, **changes: object) -> dict[str, Section]:
    found = sweep.sections(build_sweep(points=points, **changes))
    return {each.id: each for each in found}


def crossed(**changes: float) -> Points:
    return [
        point(100.0 * x + y, a_x=x, a_y=y) | changes
        for x, y in itertools.product((1, 2, 4), (1, 8))
    ]


def values(table: Section, *columns: int) -> list[list[object]]:
    assert isinstance(table, Table)
    return [[row.cells[at].value for at in columns] for row in table.rows]


def test_two_settings_have_a_map_of_every_point_and_a_line_for_each_column() -> None:
    points = crossed()
    points[1] |= {"failed": "a worker died"}
    del points[4]
    table = charts(points, default=points[0]["settings"])["heat"]
    assert isinstance(table, Table)
    assert table.where == "page"
    assert [column.label for column in table.columns] == ["x", "y 1", "y 8"]
    rates = [101 * 1.05, "failed", 201 * 1.05, 208 * 1.05, "not run", 408 * 1.05]
    found = [cell for row in table.rows for cell in row.cells[1:]]
    for cell, rate in zip(found, rates, strict=True):
        if isinstance(rate, str):
            assert (cell.value, cell.why) == (None, rate)
        else:
            assert cell.value == pytest.approx(rate)
    assert found[0].text.endswith(" today")
    assert found[5].text.endswith(" highest")
    assert found[5].high == pytest.approx(408 * 1.1)
    shades = shades_of(table)
    assert set(shades) == {(0, 1), (1, 1), (1, 2), (2, 2)}
    assert (shades[0, 1], shades[2, 2]) == (0, 8)
    heat, lines = table.charts
    drawn = chart_of(table, lines, "c")
    assert (heat.kind, lines.kind) == ("heat", "lines")
    assert drawn.count("<polyline") == 2
    assert drawn.count("<circle") == 4


COSTS = st.lists(
    st.tuples(*[st.one_of(st.none(), st.integers(0, 4).map(float))] * 3), min_size=1, max_size=9
)


@pytest.mark.parametrize("rates", [[], [[]], [[5.0]], [[0.0], [-3.0]], [[float("nan")], [1.0]]])
def test_too_few_figures_are_no_chart(rates: list[list[float]]) -> None:
    points = [{"settings": {"a": at}, "figures": each} for at, each in enumerate(rates)]
    found = charts(points)
    assert not any(each.charts for each in found.values() if isinstance(each, Table))


@given(COSTS)
def test_the_front_is_what_nothing_beats(costs: list[tuple[float | None, ...]]) -> None:
    def beaten(mine: tuple[float | None, ...]) -> bool:
        for other in costs:
            pairs = [(a, b) for a, b in zip(other, mine, strict=True) if not a is b is None]
            known = [(a, b) for a, b in pairs if a is not None and b is not None]
            nowhere_worse = len(known) == len(pairs) and all(a <= b for a, b in known)
            if nowhere_worse and any(a < b for a, b in known):
                return True
        return False

    assert front(costs) == [not beaten(each) for each in costs]


# Other verbs that answer with a number


def test_a_sweep_with_a_price_tells_what_samples_cost() -> None:
    points = [
        point(100.0, codec="none") | {"stored_bytes": 4e9},
        point(50.0, codec="zstd:1") | {"stored_bytes": 1e9},
        point(40.0, codec="zstd:9") | {"stored_bytes": 2e9},
    ]
    shown = charts(points, usd_per_hour=0.378, instance="m5.xlarge")
    table = shown["points"]
    assert isinstance(table, Table)
    at = table.at("usd_per_million_samples")
    # 0.378 USD for 3,600 s x 105 samples/s, the median of both trials of the fastest.
    assert [row.cells[at].value for row in table.rows] == pytest.approx([1.0, 2.0, 2.5])
    assert table.columns[at].where == "everywhere"
    stored, paid = table.charts
    drawn = chart_of(table, paid, "c")
    assert (drawn.count('class="front" d='), drawn.count('class="off"')) == (2, 1)
    assert drawn.index("codec=zstd:1</li>") < drawn.index("codec=none</li>")
    table = charts(points)["points"]
    assert isinstance(table, Table)
    assert table.charts == (stored,)
    assert table.columns[at].where == "data"

"""Tables that are made column by column: units, intervals, reasons, and rows that are left out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from iobench.record.run import Summary
from iobench.record.verdict import Estimate
from iobench.report.figures import ENDS, TableOf, unit_of
from iobench.report.render_csv import render_csv
from iobench.report.sections import Cell, Column, Row, Table, joined


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("samples_per_s", "samples/s"),
        ("predicted_samples_per_s", "samples/s"),
        ("read_bytes_per_s", "bytes/s"),
        ("buy_reads_per_s", ""),  # a rate, and no time
        ("stored_bytes", "bytes"),
        ("wall_s", "s"),
        ("cpu_s_per_gb", "s/GB"),
        ("workers", ""),
    ],
)
def test_a_column_has_the_unit_of_its_name(name: str, unit: str) -> None:
    assert unit_of(name) == unit
    rows = TableOf([SimpleNamespace(**{name: 90.0})])
    rows.add(name, "figure")
    assert rows.made("t").columns[0].unit == unit


def test_a_cell_has_the_interval_of_its_figure_or_the_range_of_its_median() -> None:
    found = SimpleNamespace(
        took_s=Estimate(value=2.0, low=1.0, high=4.0),
        alone_s=Estimate(value=2.0),
        seen_s=Summary(median=2.0, min=1.0, max=4.0, n=3),
        none_s=None,
    )
    rows = TableOf([found])
    rows.add("took_s", ends=ENDS)
    rows.add_each(dict.fromkeys(("alone_s", "seen_s", "none_s"), ""))
    table = rows.made("t")
    took, low, high, alone, seen, none = table.rows[0].cells
    assert (took.value, took.low, took.high) == (seen.value, seen.low, seen.high) == (2.0, 1.0, 4.0)
    assert took.text == seen.text != alone.text
    assert (low.value, high.value) == (1.0, 4.0)
    assert [each.name for each in table.columns][1:3] == ["took_s_low", "took_s_high"]
    assert (none.value, none.shown) == (None, "-")


def test_rows_beyond_the_most_are_counted() -> None:
    table = TableOf(range(7), most=5, more=10).made("t")
    assert (len(table.rows), table.more) == (5, 12)
    assert TableOf(range(3), most=5).made("t").more == 0


def test_parts_that_have_nothing_to_say_are_left_out() -> None:
    part = TableOf([1]).made("t")
    assert joined(None, part, [None, part], []) == [part, part]


def test_tables_of_data_that_differ_in_labels_of_the_user_become_one() -> None:
    def table(name: str, **values: str) -> Table:
        cells = tuple(Cell(value=value) for value in values.values())
        columns = tuple(Column(name=key) for key in values)
        return Table(id=name, columns=columns, rows=(Row(cells=cells),), where="data")

    found = render_csv([table("a", run="1", tag_box="x"), table("b", run="2", tag_site="y")])
    assert found.splitlines() == ["run,tag_box,tag_site", "1,x,", "2,,y"]

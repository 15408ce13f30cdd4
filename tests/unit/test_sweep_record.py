"""A sweep's own record: which points it has, and a file that cannot be written or read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import IobenchError, SpecError
from iobench.schema.sweep import (
    SWEEP_FILE,
    combinations,
    load_sweep,
    parse_axis,
    save_sweep,
)

GOLDEN = Path(__file__).parents[1] / "golden/0.1.0/sweep"

AXES = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True),
    min_size=1,
)


@given(axes=AXES, data=st.data())
def test_every_point_once(axes: dict[str, list[Any]], data: st.DataObject) -> None:
    base = {key: data.draw(st.sampled_from(values)) for key, values in axes.items()}
    whole = combinations(axes, one_at_a_time=False, base=base)
    assert len({tuple(point.items()) for point in whole}) == len(whole)
    assert base in whole
    few = combinations(axes, one_at_a_time=True, base=base)
    assert few[0] == base
    assert len(few) == 1 + sum(len(values) - 1 for values in axes.values())
    for point in few:
        assert point in whole
        assert sum(point[key] != base[key] for key in base) == (point != base)


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("a.b=1,2", "a.b", [1, 2]),
        (" a = x", "a", ["x"]),
        ("a=none,zstd:1", "a", ["none", "zstd:1"]),
        ("a=null,true,2.5", "a", ["null", True, 2.5]),
    ],
)
def test_an_axis(text: str, key: str, values: list[Any]) -> None:
    assert parse_axis(text) == (key, values)


@pytest.mark.parametrize("text", ["", "a", "=1", " =1", "a=", "a= ", "a=1,1", "a=2,2"])
def test_no_axis(text: str) -> None:
    with pytest.raises(SpecError):
        parse_axis(text)


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    sweep = load_sweep(GOLDEN)
    save_sweep(tmp_path, sweep)
    assert load_sweep(tmp_path) == sweep
    assert sorted(path.name for path in tmp_path.iterdir()) == [SWEEP_FILE]


@pytest.mark.parametrize("content", [None, "", "{}", '{"schema_version": "99.0"}'])
def test_no_record_is_one_line(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / SWEEP_FILE).write_text(content)
    with pytest.raises(IobenchError) as caught:
        load_sweep(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_record_that_cannot_be_written_leaves_the_earlier_one(tmp_path: Path) -> None:
    sweep = load_sweep(GOLDEN)
    (tmp_path / SWEEP_FILE).mkdir()
    with pytest.raises(IobenchError, match=SWEEP_FILE):
        save_sweep(tmp_path, sweep)
    assert [path.name for path in tmp_path.iterdir()] == [SWEEP_FILE]
    with pytest.raises(IobenchError):
        save_sweep(tmp_path / "nowhere", sweep)

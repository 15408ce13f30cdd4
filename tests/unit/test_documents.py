"""Documents from others are read within limits; JSON is ASCII and comes back as it was."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.base.beneath import NoFileError
from iobench.base.documents import MAX_DEPTH, json_text, parse_json, read_regular
from iobench.data.verify import Damage
from iobench.record.run import Finding


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[1", "nul", "{'a': 1}", b"\xff", b"\x00", '{"a": 1} x'),
        *("NaN", "[Infinity]", '{"a": -Infinity}', '{"a": 1e400}', "[-1e400]", "[1e31]"),
        *("9" * 400, "9" * 5000, "[" * 100_000, '{"a":' * 100_000, "[" * 51 + "]" * 51),
    ],
)
def test_what_is_no_document(text: str | bytes) -> None:
    with pytest.raises(ValueError) as refused:
        parse_json(text)
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 300


def test_a_number_is_named_by_its_key() -> None:
    with pytest.raises(ValueError, match=r"a\.1\.b"):
        parse_json('{"a": [1, {"b": 1e35}]}')


def test_what_is_one() -> None:
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert json_text(parse_json(deep), indent=None) == deep
    assert parse_json(b'{"a": [1, 1e30, -0.5, null, true, "\\ud800"]}') == {
        "a": [1, 1e30, -0.5, None, True, "\ud800"]
    }


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(-1e30, 1e30)
    | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(values)
def test_json_is_ascii_and_comes_back(value: Any) -> None:
    text = json_text(value)
    assert text.isascii()
    assert parse_json(text) == value == json.loads(text)


def test_records_become_objects_and_no_figure_null() -> None:
    finding = Finding(rule="r", level="info", evidence="\ud800\u202e")
    record = {"f": finding, "d": [Damage("s", None, "w")], "p": Path("/x"), "n": [float("nan")]}
    assert json.loads(json_text(record)) == {
        "f": {"rule": "r", "level": "info", "evidence": "\ud800\u202e", "remedy": ""},
        "d": [{"shard": "s", "sample": None, "what": "w"}],
        "p": "/x",
        "n": [None],
    }


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "ok").write_bytes(b"12345")
    assert read_regular(tmp_path / "ok", 5) == b"12345"
    with pytest.raises(ValueError):
        read_regular(tmp_path / "ok", 4)
    os.mkfifo(tmp_path / "fifo")
    # Nobody writes to the FIFO: to wait for its end would be forever.
    for place in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
        with pytest.raises(NoFileError):
            read_regular(place, 5)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none", 5)

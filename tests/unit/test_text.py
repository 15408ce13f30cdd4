"""Text from others: what is escaped, what is kept, and that no renderer can forget it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import unicodedata
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import iobench.report
from iobench.base.errors import StorageError
from iobench.base.text import csv_cell, escaped, github, markdown, printable, renders
from iobench.record.run import Finding
from iobench.report.render_html import hypertext
from tests.hostile import HOSTILE, RAW


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, é 漢 😀 \u00a0 €", "plain, é 漢 😀 \u00a0 €"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("\u202e\u2066\u200b\u200f\u00ad\ufeff", "\\u202e\\u2066\\u200b\\u200f\\xad\\ufeff"),
        ("\u2028\u2029\x85", "\\u2028\\u2029\\x85"),
        ("\ud800\udcff", "\\ud800\\udcff"),
        ("\ue000\U000f0000\U000e0041", "\\ue000\\U000f0000\\U000e0041"),
        ("\u2065\U000e0000", "\\u2065\\U000e0000"),  # unassigned, and shown as nothing
        ("\u0600\u06dd", "\u0600\u06dd"),  # Arabic number signs are visible
        ("e\u0301", "e\u0301"),
    ],
)
def test_what_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters()))
def test_nothing_raw_is_left(text: str) -> None:
    shown = printable(text)
    assert RAW.search(shown) is None
    assert "\n" not in shown
    raw = {"Cc", "Cf", "Cn", "Cs", "Co", "Zl", "Zp"} & set(map(unicodedata.category, shown))
    assert raw <= {"Cf"}, "format characters with a glyph of their own are kept"
    assert printable(shown) == shown
    # So no test of an error asks again whether it is one line.
    assert RAW.search(str(StorageError(text, remedy=text))) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("__init__ of _x_", "\\_\\_init\\_\\_ of \\_x\\_"),
        ("samples_per_s, R&D", "samples_per_s, R&D"),
        ("~~x~~", "\\~\\~x\\~\\~"),
        ("&lt; &#92;", "&amp;lt; &amp;#92;"),
        ("\\_x \\*", "&#92;\\_x &#92;\\*"),
    ],
)
def test_markdown_shows_a_text_as_it_is(text: str, shown: str) -> None:
    assert markdown(text) == shown


@pytest.mark.parametrize("text", ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "＝1", "-x"])
def test_formulas_are_texts(text: str) -> None:
    assert csv_cell(text) == f"'{text}"


class Pair(NamedTuple):
    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    below: tuple[Any, ...] = ()


def test_all_texts_of_a_record_are_escaped_and_nothing_else() -> None:
    finding = Finding(rule="a\x1b", level="info", evidence="fine")
    tree = Node("x\x07", (finding, Pair("y\u202e", 1), {"k\n": ["z\x00", 2.5, None, {"a"}]}))
    shown = escaped(tree)
    assert shown == Node(
        "x\\x07",
        (
            Finding(rule="a\\x1b", level="info", evidence="fine"),
            Pair("y\\u202e", 1),
            {"k\\n": ["z\\x00", 2.5, None, {"a"}]},
        ),
    )
    assert finding.rule == "a\x1b", "the original is not changed"


def test_a_renderer_gets_its_arguments_escaped() -> None:
    @renders(printable, limit=20)
    def render(node: Node, *, width: int, title: str) -> str:
        return f"{title}: {node.name} {width}"

    told = render(Node("a\x1b" + "b" * 50), width=7, title="t\n")
    assert told == "t\\n: a\\x1bbbbbbbbbbbbb... 7"


RENDERERS = [
    (module.name, name, function)
    for module in pkgutil.iter_modules(iobench.report.__path__)
    for name, function in vars(importlib.import_module(f"iobench.report.{module.name}")).items()
    if inspect.isfunction(function)
    and inspect.unwrap(function).__module__ == f"iobench.report.{module.name}"
    and name.startswith("render_")
]


@pytest.mark.parametrize(
    ("module", "name", "function"), RENDERERS, ids=[f"{m}.{n}" for m, n, _ in RENDERERS]
)
def test_every_renderer_is_one(module: str, name: str, function: Any) -> None:
    own = {"render_markdown": markdown, "render_html": hypertext, "render_github": github}
    wanted = own.get(name, printable)
    assert getattr(function, "escape", None) is wanted


def test_renderers_are_found() -> None:
    assert {name for _, name, _ in RENDERERS} == {
        f"render_{medium}" for medium in ("csv", "github", "html", "markdown", "text")
    }
    assert RAW.search(HOSTILE)

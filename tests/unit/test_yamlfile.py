"""YAML that means more than it says is refused before anything is built from it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from iobench.base.errors import SpecError
from iobench.settings.base import apply_overrides, known_specs
from iobench.settings.yamlfile import MAX_BYTES, MAX_DEPTH, parse_yaml, read_yaml
from tests.hostile import check, run


def powers(first: str, each: str) -> str:
    """Nine levels, each of which holds the one before nine times."""
    lines = [f"a0: &a0 {first}"]
    for level in range(1, 10):
        inner = ", ".join(each.format(n=n, name=f"*a{level - 1}") for n in range(9))
        lines.append(f"a{level}: &a{level} " + inner.join("[]" if each == "{name}" else "{}"))
    return "\n".join(lines)


BOMBS = {
    "lists": powers("[1]", "{name}"),
    "mappings": powers("{k: 1}", "k{n}: {name}"),
    "merges": "a0: &a0 {"
    + ", ".join(f"k{n}: 1" for n in range(9))
    + "}\n"
    + "\n".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 10)),
    "itself": "reader: &r {access: *r}",
    "itself, merged": "reader: &r {<<: *r}",
    "deep lists": "a: " + "[" * 100_000,
    "deep mappings": "a: " + "{a: " * 3000 + "1" + "}" * 3000,
    "deep blocks": "\n".join(" " * n + "a:" for n in range(200)) + " 1",
    "deep aliases": "a0: &a0 [1]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 200)),
    "many values": "[" + "1," * 110_000 + "1]",
    "many keys": "\n".join(f"k{n}: 1" for n in range(60_000)),
    "too large": "a: '" + "x" * MAX_BYTES + "'",
    "base 60": "a: 1" + ":59" * 300_000,
    "base 60, tagged": "a: !!float '1" + ":59" * 300_000 + "'",
    "digits": "a: " + "9" * 9000,
    "half a pair": 'a: "\\uD800"',
    "objects": "a: !!python/object/apply:os.system [id]",
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=list(BOMBS))
def test_bombs_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refused:
        parse_yaml(text)
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 1000
    if len(text) > 100_000:
        return  # that takes a second each time
    (tmp_path / "mine.yaml").write_text(text)
    check(run("plan", tmp_path / "mine.yaml"), (2,), "plan")
    check(run("generate", tmp_path / "mine.yaml", "--to", tmp_path / "x"), (2,), "generate")
    if "\n" not in text:
        check(run("plan", "demo", "--set", f"reader={text.partition(': ')[2]}"), (2,), "--set")


def test_aliases_are_fine_where_they_are_few() -> None:
    text = "a: &a {x: 1, y: [1, 2]}\nb: {<<: *a, x: 2}\nc: [*a, *a]"
    assert parse_yaml(text) == {
        "a": {"x": 1, "y": [1, 2]},
        "b": {"x": 2, "y": [1, 2]},
        "c": [{"x": 1, "y": [1, 2]}] * 2,
    }


def test_the_limits_themselves_pass() -> None:
    assert parse_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None
    assert len(parse_yaml("[" + "1," * 99_000 + "1]")) == 99_001
    assert parse_yaml("a: '" + "x" * 500_000 + "'") == {"a": "x" * 500_000}


def test_a_fifo_is_no_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "workloads").mkdir()
    os.mkfifo(tmp_path / "workloads/pipe.yaml")
    (tmp_path / "workloads/folder.yaml").mkdir()
    monkeypatch.chdir(tmp_path)
    assert not {"pipe", "folder"} & set(known_specs("workload"))
    check(run("list", "workloads"), (0,), "list")
    for name in ("pipe", "./workloads/pipe.yaml", "/dev/zero"):
        check(run("plan", name), (2,), name)
    with pytest.raises(SpecError):
        read_yaml(tmp_path / "workloads/pipe.yaml")


def test_overrides_have_a_depth() -> None:
    assert apply_overrides({}, ["a.b.c=1"]) == {"a": {"b": {"c": 1}}}
    with pytest.raises(SpecError):
        apply_overrides({}, [".".join("a" * 5000) + "=1"])

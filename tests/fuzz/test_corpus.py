"""Every input in ``tests/corpus`` through its target, without a fuzzer.

What once did harm never does again. Of each target a seed is good, and is read.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from tests.children import in_child
from tests.fuzz.__main__ import CORPUS, main
from tests.fuzz.mutators import mutate
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

MAX_EXTRA = 400 << 20
"""Bytes that no input of the corpus needs; some take the 64 MiB that are always granted."""

MAX_CORPUS = 500 << 10
MAX_INPUT = 8 << 10
"""Bytes: what is small is changed faster, and each change of it tells more."""


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_does_harm(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    target, inputs = TARGETS[name], sorted((CORPUS / name).iterdir())
    seeds = [path for path in inputs if path.name.startswith("seed-")]

    def work() -> tuple[list[str], int]:
        wrong = [_replayed(target, path) for path in inputs]
        return wrong, sum(_is_read(target, path) for path in seeds)

    ended = in_child(work)
    assert ended.value[0] == [""] * len(inputs)
    assert ended.value[1] > 0, "the fuzzer would look at nothing but what is refused at the door"
    assert ended.extra_bytes < MAX_EXTRA


def _replayed(target: Target, path: Path) -> str:
    try:
        target(path.read_bytes())
    except Exception as error:
        return f"{path.name}: {type(error).__name__}: {error}"
    return ""


def _is_read(target: Target, path: Path) -> bool:
    try:
        target.parse(path.read_bytes())
    except Exception:
        return False
    return True


def test_the_corpus_is_small() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_CORPUS
    large = [path for path in files if path.stat().st_size > MAX_INPUT]
    assert large == []


def test_a_defect_is_told() -> None:
    """What a target raises and does not document reaches the fuzzer, and the test above."""

    def broken(data: bytes) -> None:
        raise KeyError("x")

    assert _replayed(Target(broken), CORPUS / "url/seed-0") != ""
    assert _replayed(Target(broken, (KeyError,)), CORPUS / "url/seed-0") == ""


def test_documents_stay_documents_when_they_are_changed() -> None:
    def plain(data: bytes, _: int) -> bytes:
        return data

    document = b'{"a": [1, {"b": "c"}], "d": null}'
    changed = [mutate(document, 4096, seed, plain) for seed in range(200)]
    assert len(set(changed)) > 50
    for each in changed:
        json.loads(each)


def test_without_the_fuzzer_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["--minutes", "1"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_unknown_target_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("atheris")
    assert main(["--target", "nothing"]) == 2
    assert "holder" in capsys.readouterr().err

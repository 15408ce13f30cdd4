"""Every input in ``tests/corpus`` through its target, without a fuzzer.

What once did harm never does again, and what is good is read.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from tests.children import in_child
from tests.fuzz.__main__ import main
from tests.fuzz.mutators import mutate
from tests.fuzz.seeds import CORPUS, MAX_BYTES
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

MAX_EXTRA = 400 << 20
"""Bytes that no input of the corpus needs; some take the 64 MiB that are always granted."""

MAX_CORPUS = 500 << 10


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_does_harm(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    inputs = sorted(path for path in (CORPUS / name).iterdir() if path.is_file())
    ended = in_child(lambda: [_replayed(TARGETS[name], path) for path in inputs])
    assert ended.value == [""] * len(inputs)
    assert ended.extra_bytes < MAX_EXTRA


def _replayed(target: Target, path: Path) -> str:
    try:
        target(path.read_bytes())
    except Exception as error:
        return f"{path.name}: {type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("name", TARGETS)
def test_there_is_a_seed_that_is_good(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else the fuzzer would look at what is refused at the door, and at nothing else."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seeds = sorted((CORPUS / name).glob("seed-*"))

    def good() -> list[str]:
        return [path.name for path in seeds if _is_read(TARGETS[name], path)]

    assert in_child(good).value


def _is_read(target: Target, path: Path) -> bool:
    try:
        target.parse(path.read_bytes())
    except Exception:
        return False
    return True


def test_the_corpus_is_small() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_CORPUS
    large = [path for path in files if path.stat().st_size > 2 * MAX_BYTES]
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

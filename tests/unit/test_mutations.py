"""``make mutations`` says of a mutation whether a test finds it, and never changes the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import mutations
from tools.mutations import Mutation


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "double.py").write_text("def double(x: int) -> int:\n    return 2 * x\n")
    (tmp_path / "test_double.py").write_text(
        "from double import double\n"
        "def test_four() -> None:\n    assert double(2) == 4\n"
        "def test_zero() -> None:\n    assert double(0) == 0\n"
        "def test_wrong() -> None:\n    assert double(1) == 3\n"
        "def test_that_never_ends() -> None:\n    while double(1) != 2: pass\n"
    )
    return tmp_path


def mutation(test: str, old: str = "2 * x") -> Mutation:
    return Mutation("m", "double.py", old, "3 * x", (f"test_double.py::{test}",))


@pytest.mark.parametrize(
    ("tried", "answer"),
    [
        (mutation("test_four"), mutations.FOUND),
        (mutation("test_zero"), mutations.SURVIVED),
        (mutation("test_wrong"), mutations.FAILS_ANYWAY),
        (mutation("test_that_is_not_there"), mutations.NOT_RUN),
        (mutation("test_four", old="4 * x"), mutations.DOES_NOT_APPLY),
        (mutation("test_four", old="x"), mutations.DOES_NOT_APPLY),  # three times
    ],
    ids=lambda value: value if isinstance(value, str) else value.tests[0].partition("::")[2],
)
def test_the_answer(project: Path, tried: Mutation, answer: str) -> None:
    before = (project / "double.py").read_text()
    assert mutations.judge(tried, project)[0] == answer
    assert (project / "double.py").read_text() == before


def test_a_test_that_hangs_has_found_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "LEAST_S", 2.0)
    monkeypatch.setattr(mutations, "TIMES", 1.0)
    assert mutations.judge(mutation("test_that_never_ends"), project)[0] == mutations.FOUND


def test_only_what_was_asked_for_is_tried(capsys: pytest.CaptureFixture[str]) -> None:
    name = mutations.read()[-1].name
    assert mutations.main(["--list", "--only", name]) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == [name]
    with pytest.raises(SystemExit) as ended:
        mutations.main(["--only", "no-such-mutation"])
    assert ended.value.code == 2

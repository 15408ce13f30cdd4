"""What a checkpoint's specification may say is heeded, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from iobench.checkpoint import dcp, saving
from iobench.cli.main import main


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    place = ["--to", str(tmp_path / "ckpt"), "--results", str(tmp_path / "results")]
    return ["checkpoint", "resnet50", *place, "--scale", "1/2048", "--repeat", "2", "--json"]


@pytest.mark.parametrize("writer", ["stream", "dcp"])
@pytest.mark.parametrize("asked", [True, False])
def test_restores_are_compared_where_that_is_asked_for(
    words: list[str],
    writer: str,
    asked: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ranks are forked, so what is replaced here is replaced there."""

    def differs(*_: Any) -> None:
        raise saving.corrupt("the state", "it is not what was saved")

    monkeypatch.setattr(saving, "verify_state", differs)
    monkeypatch.setattr(dcp, "verify_state", differs)
    code = main([*words, "--writer", writer, "--set", f"verify={str(asked).lower()}"])
    told = capsys.readouterr()
    if asked:
        assert code == 1
        assert "not what was saved" in told.err
    else:
        assert code == 0
        restores = json.loads(told.out)["job"]["restores"]
        assert [restore["verified"] for restore in restores] == [None, None]


@pytest.mark.parametrize("option", ["concurrency=2", "block_size=1MiB"])
def test_options_of_one_writer_are_refused_for_others(
    words: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--writer", "torch", "--set", option]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert option.partition("=")[0] in told.err
    assert main([*words, "--writer", "stream", "--set", option]) == 0

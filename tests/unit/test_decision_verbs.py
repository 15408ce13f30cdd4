"""``iobench size``, ``whatif`` and ``advise`` as a user calls them: one clear line for bad input, pure JSON, nothing written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iobench.cli.main import main

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """(exit code, stdout, stderr) of a command in this process, with ``tmp_path`` for its working directory."""

    def go(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["iobench", *map(str, arguments)])
        try:
            code: Any = main()
        except SystemExit as left:
            code = left.code
        out, err = capfd.readouterr()
        return int(code), out, err

    return go


@pytest.fixture
def refused(call: Call) -> Callable[..., None]:
    def go(*arguments: str | Path, says: str) -> None:
        code, out, err = call(*arguments)
        assert (code, out) == (2, ""), (arguments, code, out, err)
        assert err.startswith("iobench: "), err
        assert err.count("\n") == 1, err
        assert says in err, err

    return go


def save(directory: Path, doc: Any) -> Path:
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(doc.model_dump_json())
    return directory


# size


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("demo",), "--accelerators"),
        (("dem", "--accelerators", "2"), "demo"),
        (("demo", "--accelerators", "0"), "at least 1"),
        (("demo", "--accelerators", "many"), "many"),
        (("demo", "--accelerators", "2", "--hosts", "4"), "hosts"),
        (("demo", "--accelerators", "2", "--required-au", "90"), "0.9"),
        (("demo", "--accelerators", "2", "--latency", "soon"), "'soon' is not a duration"),
        (("demo", "--accelerators", "2", "--latency", "0"), "--latency"),
        (("demo", "--accelerators", "2", "--cache", "much"), "'much' is not a size"),
        (("demo", "--accelerators", "2", "--cache=-5GB"), "zero or more"),
        (("demo", "--accelerators", "2", "--dataset-size", "3 B"), "hold no sample"),
        (("demo", "--accelerators", "2", "--checkpoint-bytes", "1GB"), "--checkpoint-budget 1m"),
        (("demo", "--accelerators", "2", "--from", "results/nowhere"), "results/nowhere"),
        (("demo", "--accelerators", "2", "--set", "reader.blocksize=4"), "block_size"),
    ],
)
def test_size_refuses(refused: Callable[..., None], arguments: tuple[str, ...], says: str) -> None:
    refused("size", *arguments, says=says)


def test_size_from_a_run(call: Call, tmp_path: Path, make_run: Callable[..., Any]) -> None:
    run = save(tmp_path / "results" / "one", make_run())
    code, out, err = call("size", "resnet50-h100", "--accelerators", "16", "--hosts", "2", "--from", run)
    assert (code, err) == (0, "")
    assert out.startswith("buy  ")
    assert "would feed    2 of 16 accelerators" in out
    assert max(map(len, out.splitlines())) <= 100
    code, out, err = call("size", "resnet50-h100", "--accelerators", "16", "--hosts", "2", "--from", run, "--json")
    found = json.loads(out)
    assert found["measured"]["accelerators_fed_local"] == 4
    assert found["write_bytes_per_s"] is None
    assert found["not_measured"]["write_bytes_per_s"]

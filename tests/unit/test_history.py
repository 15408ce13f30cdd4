"""A workload over time: planted changes are found where they are, noise is none, and what changed
beside them is named.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.analyse.compare.history import history
from iobench.cli.main import main
from iobench.report.history import sections
from iobench.report.render_text import render_text
from iobench.schema.record import TrainingRecord
from tests.unit.test_compare import document


def runs(
    factors: list[float], *, seed: int = 0, kernels: dict[int, str] | None = None
) -> list[dict[str, Any]]:
    """A run a day, 5 repetitions each, of 100 samples/s times its factor, with 2 % of noise."""
    chance = np.random.default_rng(seed)
    made = []
    kernel = "6.1"
    for number, factor in enumerate(factors):
        kernel = (kernels or {}).get(number, kernel)
        rates = (100 * factor * chance.lognormal(0, 0.02, 5)).tolist()
        made.append(
            document(
                rates,
                run_id=f"r{number}",
                created=f"2026-01-{number + 1:02d}T00:00:00+00:00",
                host__kernel=kernel,
            )
        )
    return made


def found(documents: list[dict[str, Any]]) -> Any:
    return history(
        "w", [TrainingRecord.model_validate(each) for each in documents], "samples_per_s"
    )


def test_planted_changes_are_found_where_they_are() -> None:
    one = found(runs([1.0] * 8 + [0.8] * 6 + [0.95] * 8, kernels={8: "6.5"}))
    assert [point.at for point in one.points] == [8, 14]
    assert [point.judgement.difference for point in one.points] == ["worse", "better"]
    assert one.points[0].judgement.ratio == pytest.approx(0.8, abs=0.06)
    assert one.points[0].changed == ("host.kernel: 6.1 -> 6.5",)
    assert one.points[1].changed == ()


def test_noise_is_no_change() -> None:
    """30 histories of 20 equal runs: a change is seen in 2 of them at most."""
    assert sum(bool(found(runs([1.0] * 20, seed=seed)).points) for seed in range(30)) <= 2


def test_the_order_is_that_of_time() -> None:
    documents = runs([1.0] * 6 + [0.7] * 6)
    assert [point.at for point in found(documents[::-1]).points] == [6]
    assert found(documents).trend == pytest.approx(0.7, abs=0.03)
    assert found(documents[:2]).trend is None


def test_an_invalid_run_is_shown_and_does_not_count() -> None:
    """Five warm runs among cold ones are no change; what changed during them is told at the next
    run that counts, if that is one.
    """
    documents = runs([1.0] * 6 + [9.0] * 5 + [0.7] * 6, kernels={8: "6.5"})
    for each in documents[6:11]:
        each["validity"] = "invalid"
    documents[0]["validity"] = "unknown"
    one = found(documents)
    assert [(point.at, point.judgement.difference, point.changed) for point in one.points] == [
        (11, "worse", ("host.kernel: 6.1 -> 6.5",))
    ]
    assert one.trend == pytest.approx(0.7, abs=0.05)
    shown = render_text(sections([one], ()))
    assert (shown.count("INVALID"), len(one.entries)) == (5, 17)
    assert not found([{**each, "validity": "invalid"} for each in documents]).points


def test_a_point_that_is_no_difference_in_the_end_is_none() -> None:
    """With this noise run 15 is cut off from [14, 25), whose last runs are slow; without these it
    is as fast as its neighbours.
    """
    one = found(runs([1.1] * 7 + [0.9] * 7 + [1.1] * 7 + [0.7] * 4, seed=9))
    assert [(point.at, point.judgement.difference) for point in one.points] == [
        (7, "worse"),
        (14, "better"),
        (21, "worse"),
    ]


def test_history_as_a_user_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, each in enumerate([*runs([1.0] * 5 + [0.8] * 5), *runs([1.0] * 2)]):
        if number >= 10:
            each["job"]["workload"]["batch_size"] = 99
        folder = tmp_path / "results" / f"{number:02d}"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(each))
    (tmp_path / "results" / "half").mkdir()
    (tmp_path / "results" / "half" / "run.json").write_text("{")
    assert main(["history", "w"]) == 0
    shown = capsys.readouterr().out
    assert "WORSE: 0.8" in shown
    assert "nothing in the fingerprint or the settings changed" in " ".join(shown.split())
    assert "results/half" in shown.split("Left out")[1]
    assert main(["history", "w", "--json"]) == 0
    documents = json.loads(capsys.readouterr().out)["histories"]
    assert sorted(len(each["entries"]) for each in documents) == [
        2,
        10,
    ]  # another batch size asks something else
    assert main(["history", "v"]) == 2
    assert ": w\n" in capsys.readouterr().err  # what there is
    assert main(["history", "w", "--metric", "speed"]) == 2
    capsys.readouterr()
    assert main(["history", "w", "--metric", "blocked_s"]) == 2
    assert "blocked_s" in capsys.readouterr().err
    assert main(["history", "w", "--results", "nowhere"]) == 2
    (tmp_path / "none" / "r").mkdir(parents=True)
    (tmp_path / "none" / "r" / "run.json").write_text(
        json.dumps(document([], status="interrupted"))
    )
    capsys.readouterr()
    assert main(["history", "w", "--results", "none"]) == 2
    told = capsys.readouterr().err
    assert ("none/r" in told, "interrupted" in told) == (True, True)


def test_series_say_what_sets_them_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    documents = runs([1.0] * 4)
    documents[2]["job"]["workload"]["batch_size"] = 99
    documents[3]["job"]["workload"]["batch_size"] = 99
    documents[3]["storage"]["url"] = "/elsewhere"
    for number, each in enumerate(documents):
        folder = tmp_path / "results" / str(number)
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(each))
    assert main(["history", "w"]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert "batch_size=8: samples/s of 2 runs" in first
    assert "not the same" not in first
    assert "batch_size=99: samples/s of 2 runs" in second
    assert "not the same in all: storage.url" in second

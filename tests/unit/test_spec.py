"""Specs are strict: what is misspelt, contradictory or senseless is one clear line and exit code
2.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iobench.base.errors import SpecError
from iobench.cli.run import flag_overrides
from iobench.cli.verbs import RunRequest
from iobench.record.packing import matches
from iobench.runner.repeated import asked_again
from iobench.runner.sweeping.plan import workload_of
from iobench.settings.base import build, find_spec, known_specs
from iobench.settings.dataset import DatasetSpec, load_dataset_spec
from iobench.settings.workload import Workload, load_workload
from iobench.settings.yamlfile import read_yaml
from tests.unit.conftest import build_run, build_sweep

DATASET: dict[str, Any] = {"name": "d", "samples": 10, "sample_size": {"mean": "1 MB"}}


def dataset(**changes: Any) -> DatasetSpec:
    return build(DatasetSpec, {**DATASET, **changes}, where="d")


def refusal(make: Any) -> str:
    """The one line of a SpecError."""
    with pytest.raises(SpecError) as caught:
        make()
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_the_mean_of_quantiles_is_the_area_under_them() -> None:
    size = dataset(
        sample_size={"distribution": "quantiles", "quantiles": [[0, 100], [0.5, 200], [1, "1 kB"]]}
    ).sample_size
    assert size.mean_bytes == pytest.approx(0.5 * 150 + 0.5 * 600)


# Overrides


def test_an_override_chooses_how_shards_are_cut_and_sizes_are_drawn() -> None:
    spec = load_dataset_spec("resnet50", ["shard_size=64MiB"])
    assert (spec.shard_size, spec.samples_per_shard) == (64 << 20, None)
    assert (
        load_dataset_spec("cosmoflow", ["sample_size.distribution=constant"]).sample_size.stdev
        is None
    )


# Files and look-up


def test_look_up_goes_from_near_to_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    builtin = find_spec("dataset", "demo")
    assert load_dataset_spec("demo").samples == 2560

    (tmp_path / "datasets").mkdir()
    local = tmp_path / "datasets" / "demo.yaml"
    local.write_text("{name: demo, samples: 5, sample_size: {mean: 1kB}}")
    (tmp_path / "datasets" / "mine.yaml").write_text(
        "{name: mine, samples: 6, sample_size: {mean: 1kB}}"
    )
    assert find_spec("dataset", "demo") == local != builtin
    assert load_dataset_spec("demo").samples == 5
    assert load_dataset_spec("mine").samples == 6
    assert find_spec("dataset", "unet3d").parent == builtin.parent
    assert known_specs("dataset")["demo"] == local
    assert {"mine", "unet3d"} <= set(known_specs("dataset"))

    explicit = tmp_path / "other.yaml"
    explicit.write_text("{name: demo, samples: 7, sample_size: {mean: 1kB}}")
    assert load_dataset_spec(str(explicit)).samples == 7
    assert load_dataset_spec("other.yaml").samples == 7


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: [1, 2", "line 1"),
        ("name: a\n\tsamples: 3", "line 2"),
        ("name: 2024-13-45", ""),
        ("name: d\nsamples: 1\nsamples: 2\nsample_size: {mean: 1}", "'samples'"),
        ("", ""),
    ],
)
def test_a_broken_file_is_one_line_with_its_name(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    message = refusal(lambda: read_yaml(path))
    assert says in message
    assert str(path) in message


# Wildcards


@example(["*", "a", "*", "a", "*"], "a")
@given(
    st.lists(st.sampled_from(["a", "b", "ab", "/", "*", "*"]), max_size=7),
    st.text("ab/", max_size=9),
)
def test_the_answer_is_that_of_a_regular_expression(pieces: list[str], name: str) -> None:
    pattern = "".join(pieces)
    expression = "[^/]*".join(map(re.escape, pattern.split("*")))
    assert matches(pattern, name) == bool(re.fullmatch(expression, name))


@pytest.mark.parametrize("place", ["2024", "~", "a: b"])
def test_a_place_of_a_flag_is_taken_as_it_is_written(place: str) -> None:
    asked = RunRequest("demo", data="d", cache_dir=place, cache_size=1 << 30)
    cache = load_workload("demo", flag_overrides(asked)).local_cache
    assert cache is not None
    assert cache.directory == place


@pytest.mark.parametrize(
    "asked",
    [
        ["loader.kind=torch-map", "loader.transport=ring", "loader.workers=1"],
        ["accelerator.kind=null"],  # the file's own step time is of its own kind
        ["accelerator.kind=mine", "accelerator.precision=bfloat16"],  # a plug-in's
        ["accelerator.compile=false", "accelerator.peak_flops=null"],
    ],
)
def test_what_another_kind_uses_may_be_named_as_it_is_anyway(asked: list[str]) -> None:
    """What is refused is in the snapshots of errors."""
    assert load_workload("demo", asked)


def test_a_file_says_what_its_kind_uses(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    job = "{name: job, dataset: demo, batch_size: 2, accelerator: {step_time: 5ms, %s}}"
    file.write_text(job % "warm_up: 5s")
    assert "accelerator.warm_up has no effect" in refusal(lambda: load_workload(str(file)))
    model = ["accelerator.kind=model", "accelerator.model=resnet18"]
    assert load_workload(str(file), model).accelerator.warm_up == 5.0
    # In a sweep of kinds, an override may be meant for any of them.
    file.write_text(job % "kind: emulated")
    assert load_workload(str(file), ["accelerator.model=resnet18"], kinds=["emulated", "model"])


def test_a_run_that_is_done_again_is_checked_as_well(tmp_path: Path) -> None:
    doc = build_run(workload={"dataset": "demo"}, dataset={"location": str(tmp_path)})
    with pytest.raises(SpecError, match="precision has no effect with kind 'emulated'"):
        asked_again(doc, overrides=["accelerator.precision=bfloat16"])


def test_an_override_may_be_meant_for_any_kind_of_a_sweep() -> None:
    sweep = build_sweep(workload="demo", overrides=["accelerator.model=resnet18"])
    kinds = ["emulated", "model"]
    both = sweep.model_copy(update={"axes": {"accelerator.kind": kinds}})
    for kind in kinds:
        found = workload_of(both, {"accelerator.kind": kind})
        assert isinstance(found, Workload)
        assert found.accelerator.kind == kind
    assert "accelerator.model has no effect" in refusal(lambda: workload_of(sweep, {}))

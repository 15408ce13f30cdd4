"""Every verb once, from a dataset to nothing again: on local disk, and on an S3 server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from iobench.cli.main import VERBS
from iobench.record.published import DOCUMENTS, json_schema
from tests.processes import in_process
from tests.servers.s3 import S3Server, rclone_s3, s3_environment

__all__ = ["rclone_s3", "s3_environment"]

SAMPLES = 24
ONCE = (
    *("--set", "epochs=1", "--set", "batch_size=4"),
    *("--set", "loader.workers=0", "--set", "reader.crop=null"),
)
BARE = ("--calibration", "0s", "--no-ablations")
TAG = ("--tag", "box=nfs-b", "--tag", "site=Basel")
"""Labels, given to each verb that records a run."""

MODEL = ("tests.networks:Tiny", "--set", "accelerator.threads=1")


class Story:
    """Commands in their order. ``told``: the verbs that were given."""

    def __init__(self) -> None:
        self.told: set[str] = set()

    def text(self, *words: object) -> str:
        self.told.add(str(words[0]))
        code, out, err = in_process(*words, "--quiet")
        assert (code, err) == (0, ""), (words, out, err)
        assert out, words
        return out

    def document(self, *words: object) -> dict[str, Any]:
        found = json.loads(self.text(*words, "--json"))
        assert isinstance(found, dict)
        return found


def fitting_documents(folder: Path) -> dict[str, int]:
    """The number of documents of each kind in the folder, all of which fit the published schema."""
    found = {}
    for name in DOCUMENTS:
        validator = Draft202012Validator(json_schema(name))
        paths = list(folder.rglob(f"{name}.json"))
        for path in paths:
            assert list(validator.iter_errors(json.loads(path.read_text()))) == [], path
        found[name] = len(paths)
    return found


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.nightly)])
def place(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    s3_environment: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """A prefix for places that are not there yet."""
    if request.param == "local":
        return str(tmp_path)
    server: S3Server = request.getfixturevalue("rclone_s3")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return server.url(tmp_path.name).partition("?")[0]


def test_every_verb(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_left: set[int]
) -> None:
    """What reads no storage is told on local disk alone."""
    monkeypatch.chdir(tmp_path)
    story, data, results = Story(), f"{place}/data", tmp_path / "results"
    remote = place.startswith("s3://")
    made = story.document("generate", "demo", "--to", data, "--samples", SAMPLES)
    assert (made["samples"], made["written_samples"]) == (SAMPLES, SAMPLES)
    checked = story.document("verify", data)
    assert (checked["ok"], checked["samples"]) == (True, SAMPLES)
    probed = story.document("probe", data, "--max-in-flight", 1, "--budget", "2s")
    assert probed["objects"] == made["shards"]
    assert story.document("scan", data, "--save", "mine.yaml")["samples"] == SAMPLES

    runs = []
    # With all ceilings and ablations, and with none.
    for options in (("--calibration", "50ms", "--ablations", "1s"), BARE):
        asked = ("--repeat", 2, *ONCE, *options, *TAG, "--results", results)
        run = story.document("run", "demo", "--data", data, *asked)
        assert (run["status"], len(run["job"]["repetitions"])) == ("ok", 2)
        assert {one["samples"] for one in run["job"]["repetitions"]} == {SAMPLES}
        runs.append(results / run["run_id"])
    turns = story.document(
        *("ab", data, "--workload", "demo", "--set-b", "reader.concurrency=2", *ONCE),
        *("--max-rounds", 4, *TAG, "--results", tmp_path / "turns"),
    )
    assert (turns["status"], len(turns["rounds"])) == ("ok", 4)
    trained = story.document(
        *("train", *MODEL, "--data", data, "--batch-size", 4, "--repeat", 1, *BARE, *TAG),
        *("--set", "max_steps=5", "--set", "loader.workers=1", "--set", "reader.crop=3072"),
        *("--results", results),
    )
    assert (trained["status"], trained["job"]["repetitions"][0]["steps"]) == ("ok", 5)
    swept = story.document(
        *("sweep", "demo", "--to", f"{place}/swept", "--samples", SAMPLES, "--repeat", 2),
        *("--sweep", "reader.concurrency=1,2", *ONCE, "--calibration", "0s"),
        *("--results", tmp_path / "swept-results", *TAG),
    )
    assert [len(point["runs"]) for point in swept["points"]] == [2] * len(swept["points"])
    asked = ("--rate", 20, "--limit", "10s", "--duration", "300ms", "--repeat", 1)
    served = story.document("serve", "demo", "--data", data, *asked, *TAG, "--results", results)
    assert [one["kind"] for one in served["job"]["trials"]] == ["repetition", "without-storage"]
    kept = story.document(
        *("kv", "kv-chat-llama3-8b", "--to", f"{place}/kv", "--set", "layers=1", "--rate", 4),
        *("--set", "prompts.max_tokens=3000", "--set", "prompts.new_tokens=600"),
        *("--set", "dram=0", "--limit", "600s"),  # of which a late client takes little
        *("--duration", "1s", "--repeat", 1, *TAG, "--results", results),
    )
    assert kept["job"]["trials"][0]["kind"] == "repetition"
    assert kept["job"]["trials"][0]["chunks_loaded"] > 0
    first = story.document("check", data, "--budget", "10s", *ONCE, *TAG, "--results", results)
    assert (first["status"], first["job"]["dataset"]["samples"]) == ("ok", SAMPLES)
    saved = story.document(
        *("checkpoint", "resnet50", "--to", f"{place}/saved", "--scale", "1/2048", "--repeat", 2),
        *("--results", results, "--keep-data", *TAG),
    )
    assert (saved["status"], len(saved["job"]["saves"])) == ("ok", 2)
    weights = ("qwen3-0.6b-weights", "--to", f"{place}/weights", "--layers", 1, "--vocabulary", 64)
    assert story.document("generate", *weights)["tensors"] == 14
    loads = story.document(
        *("load", f"{place}/weights", "--loader", "direct", "--repeat", 1, *TAG),
        *("--results", tmp_path / "loads"),
    )
    assert (loads["status"], loads["job"]["figures"][0]["n"]) == ("ok", 1)
    assert all(fitting_documents(tmp_path).values())
    recorded = [*results.glob("*/run.json"), *(tmp_path / "turns").rglob("run.json")]
    assert len(recorded) == 9
    recorded += (tmp_path / "swept-results").rglob("run.json")
    if not remote:
        without_storage(story, runs, Path(swept["directory"]), results)

    story.text("clean", data)
    story.text("clean", f"{place}/saved")
    assert left_at(place) == []
    begin = ("demo", *(["--s3"] if remote else []), "--samples", SAMPLES, "--repeat", 1, *TAG)
    story.text(*begin, "--calibration", "0s", "--results", tmp_path / "demo-results")
    (demo,) = (tmp_path / "demo-results").glob("*/run.json")
    tags = [json.loads(path.read_text())["tags"] for path in [*recorded, demo]]
    assert tags == [{"box": "nfs-b", "site": "Basel"}] * (9 + 2 * len(swept["points"]) + 1)
    if not remote:
        assert story.told == set(VERBS)


def without_storage(story: Story, runs: list[Path], sweep: Path, results: Path) -> None:
    """What plans, or tells of records."""
    assert story.document("list")
    assert story.document("plan", "demo", "--accelerators", 2)
    assert story.document("plan", "llama3-8b", "--ranks", 8)
    story.text("doctor", results)
    assert story.document("size", "demo", "--accelerators", 8)
    story.text("train", *MODEL, "--steps", 3, "--time", "0s", "--record", "steps.json")
    assert story.document("report", runs[0])["run_id"] == runs[0].name
    assert story.document("compare", *runs)
    assert story.document("cost", runs[0], "--host-price-per-hour", 1)
    assert story.document("compare", results, "--over-time", "demo")
    assert story.document("whatif", runs[0], "--workers", 2)
    assert story.document("advise", sweep)


def left_at(place: str) -> list[str]:
    """Of the dataset, the sweep and the checkpoints."""
    from iobench.storage import open_storage

    storage = open_storage(place)
    keys = [entry.key for entry in storage.list()]
    storage.close()
    return [key for key in keys if key.partition("/")[0] in ("data", "swept", "saved")]

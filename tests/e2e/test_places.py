"""The same three workloads on a local disk, on two S3 servers and on NFS, by the commands that the README shows.

On each place accelerators of a modest appetite are fed, and a link of 2 MB/s before the same data starves hungry ones. What S3's own
examples say is run here, too: ``test_cli.py`` has the others.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from iobench.cli.main import VERBS, build_parser, main
from tests.servers.nfs import NfsServer, nfs_server
from tests.servers.s3 import KEY, SECRET, S3Server, rclone_s3, s3_environment, swift_s3

__all__ = ["nfs_server", "rclone_s3", "s3_environment", "swift_s3"]

pytestmark = pytest.mark.usefixtures("s3_environment")


class Workload(NamedTuple):
    """A reference workload, small enough for a test: what its dataset and its run are told."""

    name: str
    dataset: str
    samples: int
    made: tuple[str, ...]
    run: tuple[str, ...]


WORKLOADS = (
    Workload("resnet50-h100", "resnet50", 24, ("sample_size.mean=20kB", "samples_per_shard=10"), ("batch_size=4",)),
    Workload(
        "unet3d-h100",
        "unet3d",
        8,
        ("sample_size.mean=150kB", "sample_size.stdev=10kB", "sample_size.min=100kB", "sample_size.max=200kB"),
        ("batch_size=2", "reader.crop=64KiB"),
    ),
    Workload("cosmoflow-h100", "cosmoflow", 20, ("sample_size.mean=50kB", "sample_size.stdev=1kB"), ("batch_size=4",)),
)
QUICK = ("--repeat", "1", "--calibration-s", "0.1", "--set", "epochs=1", "--set", "loader.workers=1", "--json")

Place = Callable[[str], str]
"""A name -> the URL or path of an empty place of that name."""


@pytest.fixture(params=["local", "rclone", "swift", "nfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return lambda name: str(tmp_path / name)
    if request.param == "nfs":
        server: NfsServer = request.getfixturevalue("nfs_server")
        return lambda name: server.url(f"/{tmp_path.name}-{name}")
    s3: S3Server = request.getfixturevalue(f"{request.param}_s3")
    return lambda name: s3.url(f"{tmp_path.name}/{name}")


def settings(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


@pytest.fixture
def iobench(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def call(*words: str, code: int = 0) -> str:
        found = main(list(words))
        shown = capsys.readouterr()
        assert (found, shown.err) == (code, ""), (words, shown)
        return shown.out

    return call


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_workload_runs_anywhere(place: Place, iobench: Callable[..., str], workload: Workload, tmp_path: Path) -> None:
    where = place(workload.dataset)
    iobench("generate", workload.dataset, "--to", where, "--samples", str(workload.samples), "--quiet", *settings(*workload.made))
    results = ("--results", str(tmp_path / "results"))

    modest = settings(*workload.run, "accelerator.step_time=250ms", "required_accelerator_utilization=0.7")
    fed = json.loads(iobench("run", workload.name, "--data", where, *results, *QUICK, *modest))
    assert (fed["status"], fed["validity"]) == ("ok", "valid")
    assert (fed["verdict"]["binds"], fed["verdict"]["starved"]) == ("accelerator", False), fed["verdict"]["sentence"]
    for repetition in fed["repetitions"]:
        assert repetition["samples"] == workload.samples
        assert repetition["bytes_read"] >= repetition["sample_bytes"] > 0

    slow = f"throttled+{where}{'&' if '?' in where else '?'}bandwidth=2MB"
    starved = json.loads(
        iobench("run", workload.name, "--data", slow, *results, *QUICK, *settings(*workload.run, "accelerator.step_time=10ms"))
    )
    assert (starved["verdict"]["binds"], starved["verdict"]["starved"]) == ("storage", True), starved["verdict"]["sentence"]
    assert starved["dataset"]["id"] == fed["dataset"]["id"]
    assert starved["metrics"]["read_bytes_per_s"]["median"] < 2.3e6

    for run in (tmp_path / "results").iterdir():
        assert json.loads(iobench("report", str(run), "--format", "json"))["verdict"] in (fed["verdict"], starved["verdict"])
    iobench("verify", where, "--quiet")
    iobench("clean", where)
    found = main(["verify", where])  # nothing is left to verify
    assert found == 1


# The examples of the helps that name s3://


def _examples() -> Iterator[list[str]]:
    parser = build_parser()
    actions: Any = parser._subparsers
    for verb in VERBS:
        help_text = actions._group_actions[0].choices[verb].format_help()
        for line in re.findall(r"^  (iobench .*)$", help_text, flags=re.M):
            words = shlex.split(line)[1:]
            if any("s3://" in word for word in words):
                yield words


def test_the_examples_on_s3(rclone_s3: S3Server, iobench: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rclone_s3.client().create_bucket(Bucket="bucket")
    monkeypatch.setenv("AWS_ENDPOINT_URL", rclone_s3.endpoint)
    monkeypatch.chdir(tmp_path)
    examples = sorted(_examples(), key=lambda words: ("generate", "scan", "checkpoint", "run", "verify", "clean").index(words[0]))
    assert {words[0] for words in examples} >= {"generate", "clean", "checkpoint"}
    for words in examples:
        small = list(words)
        if words[0] == "generate":
            small += ["--samples", "20", "--quiet"]
        if words[0] == "checkpoint":
            small += ["--scale", "1/100000", "--count", "1", "--results", str(tmp_path / "results")]
        if words[0] == "scan":
            small += ["--quiet"]
        if words[0] in ("clean", "scan") and not _there(rclone_s3, words[1]):
            main(["generate", "resnet50", "--to", words[1], "--samples", "10", "--quiet", "--set", "samples_per_shard=5"])
        assert main(small) == 0, small


def _there(server: S3Server, url: str) -> bool:
    prefix = url.removeprefix("s3://bucket/")
    return bool(server.client().list_objects_v2(Bucket="bucket", Prefix=prefix).get("KeyCount"))


# Secrets

CANARY = "canary-9d2c41e7a6f05b38"


def test_a_secret_is_found_nowhere(
    rclone_s3: S3Server, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that succeed, and runs that fail because of the credentials, with a traceback asked for: neither shows them."""
    where = rclone_s3.url(f"{tmp_path.name}/secret")
    words = ("generate", "cosmoflow", "--to", where, "--samples", "8", *settings("sample_size.mean=20kB", "sample_size.stdev=1kB"))
    assert main(list(words)) == 0
    results = ("--results", str(tmp_path / "results"))
    run = ("run", "cosmoflow-h100", "--data", where, *results, *QUICK, *settings("batch_size=2"))
    checkpoint = ("checkpoint", "resnet50", "--to", rclone_s3.url(f"{tmp_path.name}/ckpt"), "--scale", "1/16", "--count", "1", *results)
    assert main(list(run)) in (0, 3)
    assert main(list(checkpoint)) == 0
    monkeypatch.setenv("AWS_SESSION_TOKEN", CANARY)
    _tried([*run, "--debug"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    for client in ("obstore", "s3fs", "boto3"):
        _tried([*run, *settings(f"storage.client={client}"), "--debug"])
    _tried([*checkpoint, "--debug"])
    (tmp_path / "results" / "reported").mkdir()
    for found in [path for path in (tmp_path / "results").iterdir() if (path / "run.json").exists()]:
        for form in ("text", "json", "csv", "markdown"):
            main(["report", str(found), "--format", form])
    shown = capfd.readouterr()
    files = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert files
    haystack = (shown.out + shown.err).encode() + b"".join(path.read_bytes() for path in files)
    for needle in (CANARY, SECRET, hashlib.sha256(CANARY.encode()).hexdigest()):
        assert needle.encode() not in haystack
    assert KEY.encode() not in b"".join(path.read_bytes() for path in files)


def _tried(words: list[str]) -> None:
    """Whatever comes of it; ``--debug`` raises what it would have said in one line."""
    import traceback

    try:
        main(words)
    except Exception:
        traceback.print_exc()

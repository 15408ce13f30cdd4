"""``plan --print mlpstorage``: the commands of MLPerf Storage's own tool."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest

from tests.processes import printed

STUB = """
mlpstorage() { echo mlpstorage "$@"; }
ssh() { echo ssh "$@"; }
"""


def commands(words: str) -> list[list[str]]:
    """What a shell runs of the lines, word by word."""
    script = STUB + printed(f"plan {words} --print mlpstorage")
    found = subprocess.run(
        ["bash", "-eu"], input=script, capture_output=True, text=True, check=True
    )
    return [line.split() for line in found.stdout.splitlines()]


def runs_of(found: list[list[str]]) -> list[list[str]]:
    return [line for line in found if line[4:5] == ["run"]]


def of(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_the_files_are_those_that_datasize_recorded() -> None:
    """The datasize of a published run: 5 hosts with 8,112,201,023,488 bytes together.

    mlcommons/storage_results_v3.0 at 068d91f, closed/NVIDIA/results/
    aistore-3n-oci-bm-denseio-e5-128-5client-unet3d/training/unet3d/datasize/20260721_203159.
    """
    found = commands(
        f"unet3d-b200 --accelerators 5 --hosts 5 --host-memory {8112201023488 // 5} "
        "--data /mnt/fast"
    )
    assert [line[:5] for line in found] == [
        ["mlpstorage", "init", "organisation", "/srv/mlperf-results"],
        *(["mlpstorage", "closed", "training", "unet3d", verb] for verb in ("datasize", "datagen")),
        *(["mlpstorage", "closed", "training", "unet3d", "run"] for _ in range(6)),
        ["mlpstorage", "reports", "reportgen", "--results-dir", "/srv/mlperf-results"],
        ["mlpstorage", "validate", "/srv/mlperf-results"],
    ]
    datasize, datagen, run = found[1], found[2], found[3]
    assert (of(datasize, "--max-accelerators"), of(datasize, "--client-host-memory-in-gb")) == (
        "5",
        "1511",
    )
    assert of(datagen, "--params") == of(run, "--params") == "dataset.num_files_train=276677"
    assert of(run, "--data-dir") == "/mnt/fast"
    assert (run[5], of(run, "--num-accelerators")) == ("file", "5")


def test_steps_decide_the_files_where_memory_is_small() -> None:
    words = "retinanet-b200 --accelerators 4 --host-memory 1GiB --data s3://box/data"
    (run, *_) = runs_of(commands(words))
    assert of(run, "--params") == f"dataset.num_files_train={500 * 24 * 4}"
    assert run[5] == "object"


def test_settings_that_closed_allows() -> None:
    words = "unet3d-b200 --set loader.workers=16 --set reader.direct=true"
    (run, *_) = runs_of(commands(words))
    assert run[-2:] == ["reader.read_threads=16", "reader.odirect=True"]


def test_what_cannot_be_submitted_has_no_validation() -> None:
    found = commands("resnet50-h100")
    assert {line[1] for line in found} == {"init", "whatif", "reports"}


@pytest.mark.parametrize(("hosts", "memory", "split"), [(1, 512, True), (1, 256, False)])
def test_the_cache_is_cleared_where_the_saves_are_small(
    hosts: int, memory: int, split: bool
) -> None:
    """4.3.1: ten saves of 105 GiB are more than 3 x 256 GiB, and less than 3 x 512 GiB."""
    found = commands(f"llama3-8b --hosts {hosts} --host-memory {memory}GiB --to '/mnt/a b'")
    runs = runs_of(found)
    flags = ("--num-checkpoints-write", "--num-checkpoints-read")
    counts = [tuple(of(run, flag) for flag in flags) for run in runs]
    assert counts == ([("10", "0"), ("0", "10")] if split else [("10", "10")])
    assert any(line[0] == "ssh" for line in found) == split
    assert of(runs[0], "--num-processes") == "8"


def test_what_is_told_is_a_comment() -> None:
    """Every line is a command or a comment, also with a name that would be another command."""
    text = printed("plan unet3d-b200 --data '/mnt/$(reboot)' --print mlpstorage")
    (line,) = re.findall("^DATA=.*$", text, re.MULTILINE)
    assert shlex.split(line) == ["DATA=/mnt/$(reboot)"]

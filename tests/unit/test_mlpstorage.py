"""``plan --print mlpstorage``: the commands of MLPerf Storage's own tool."""

from __future__ import annotations

import re
import shlex
import subprocess

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
    datasize, datagen, run = found[1], found[2], found[3]
    assert of(datasize, "--client-host-memory-in-gb") == "1511"
    assert of(datagen, "--params") == of(run, "--params") == "dataset.num_files_train=276677"
    assert of(run, "--data-dir") == "/mnt/fast"
    assert (run[5], of(run, "--num-accelerators")) == ("file", "5")


def test_what_is_told_is_a_comment() -> None:
    """Every line is a command or a comment, also with a name that would be another command."""
    text = printed("plan unet3d-b200 --data '/mnt/$(reboot)' --print mlpstorage")
    (line,) = re.findall("^DATA=.*$", text, re.MULTILINE)
    assert shlex.split(line) == ["DATA=/mnt/$(reboot)"]

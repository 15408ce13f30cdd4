"""Which tests run when: three tiers, and what of the last one a change of a folder runs, too.

- ``fast``: ``make test``, in minutes: each verb once, contracts, security, a short oracle for each
  answer.
- ``slow``: what ``make test-all`` adds: faults, the command line, libraries, each verb in full,
  more oracles.
- ``nightly``: what ``make test-nightly`` adds: real servers, loops over every fault, browsers,
  launchers, examples of documents, long oracles. Some of it also runs on a change
  (``make test-touched``); ``TOUCHED`` says which.

A file belongs to the tier of the table here, or else is fast; a test's own mark moves it to a later
tier. Tests with the mark ``alone`` measure speeds: they run one at a time, beside nothing, and the
short ones, which mostly wait, two at a time.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

FAST, SLOW, NIGHTLY = TIERS = ("fast", "slow", "nightly")

TIER_OF = {
    "oracle": SLOW,
    "faults": SLOW,
    "fuzz": SLOW,
    "browser": NIGHTLY,
    # Real servers. They also run on a change of what talks to them.
    "contract/test_fsspec.py": NIGHTLY,
    "contract/test_lock.py": SLOW,
    "contract/test_nfs.py": NIGHTLY,
    "contract/test_s3.py": NIGHTLY,
    "faults/test_event_loop.py": NIGHTLY,
    "faults/test_nfs_faults.py": NIGHTLY,
    "faults/test_s3.py": NIGHTLY,
    "faults/test_split_brain.py": NIGHTLY,
    # Other hosts.
    "e2e/test_hosts_checkpoint.py": NIGHTLY,
    "e2e/test_hosts_loaders.py": NIGHTLY,
    "e2e/test_hosts_trials.py": NIGHTLY,
    "e2e/test_hosts_verbs.py": NIGHTLY,
    # The reference workloads, packages, and examples of the documents, whole.
    "e2e/test_packages.py": NIGHTLY,
    "e2e/test_stranger.py": NIGHTLY,
    "e2e/test_workloads.py": NIGHTLY,
    # Mistakes, terminals, and each operation that can fail.
    "e2e/test_bad_input.py": SLOW,
    "e2e/test_cli.py": SLOW,
    "e2e/test_live.py": SLOW,
    "e2e/test_terminals.py": SLOW,
    "faults/test_fault_loop.py": NIGHTLY,
    # Every format, library and writer through whole commands.
    "contract/test_checkpoint.py": SLOW,
    "contract/test_loader_libraries.py": SLOW,
    "e2e/test_checkpoint.py": SLOW,
    "e2e/test_cold.py": SLOW,
    "e2e/test_loader_libraries.py": SLOW,
    "e2e/test_scan.py": SLOW,
    "e2e/test_scan_tables.py": SLOW,
    "e2e/test_sweep.py": SLOW,
    # Each verb in full: test_every_verb.py has all of them in short.
    "e2e/test_ab.py": SLOW,
    "e2e/test_advised_commands.py": SLOW,
    "e2e/test_check.py": SLOW,
    "e2e/test_model_load.py": SLOW,
    "e2e/test_ablation_runs.py": SLOW,
    "e2e/test_own_loader.py": SLOW,
    "e2e/test_action.py": SLOW,
    "e2e/test_plug_in_example.py": SLOW,
    "e2e/test_probe.py": SLOW,
    "e2e/test_sync.py": SLOW,
    "e2e/test_train.py": SLOW,
    "security/test_own_network.py": SLOW,
    # One short oracle for each answer; the long ones follow the advice, too.
    "oracle/test_short.py": FAST,
    "oracle/test_causes_stages.py": NIGHTLY,
    "oracle/test_causes_storage.py": NIGHTLY,
    "oracle/test_fed_oracle.py": NIGHTLY,
    "oracle/test_hosts_ended.py": NIGHTLY,
    "oracle/test_hosts_oracle.py": NIGHTLY,
    "oracle/test_planted_loaders_oracle.py": NIGHTLY,
    "oracle/test_size_oracle.py": NIGHTLY,
    "oracle/test_sweep_oracle.py": NIGHTLY,
    "oracle/test_sync_oracle.py": NIGHTLY,
    "oracle/test_transfer.py": NIGHTLY,
    "oracle/test_two_machines.py": NIGHTLY,
    "oracle/test_verdict_oracle.py": NIGHTLY,
}
"""Files and folders that are not fast, below ``tests``."""

_LOOP = "faults/test_fault_loop.py::test_a_verb_survives_faults"

TOUCHED = {
    "datasets": ("e2e/test_workloads.py",),
    "iobench/checkpoint": (
        "contract/test_checkpoint.py",
        "faults/test_checkpoint.py",
        f"{_LOOP}[checkpoint-stream]",
        f"{_LOOP}[checkpoint-torch]",
    ),
    "iobench/cli": ("e2e/test_cli.py", "e2e/test_live.py"),
    "iobench/data/generator": (f"{_LOOP}[generate]",),
    "iobench/report/page": (
        "browser/test_behaviour.py",
        "browser/test_pages.py::test_every_chart_is_drawn",
    ),
    "iobench/runner/hosts": (
        "e2e/test_deploy.py",
        "e2e/test_hosts_checkpoint.py",
        "e2e/test_hosts_loaders.py::test_a_loader_library_on_two_hosts",
        "e2e/test_hosts_loaders.py::test_checkpoints_between_the_steps_of_two_hosts",
        "e2e/test_hosts_trials.py",
        "e2e/test_hosts_verbs.py",
    ),
    "iobench/serve": ("oracle/test_model_load_oracle.py",),
    "iobench/storage/fsspec": ("contract/test_fsspec.py",),
    "iobench/storage/locks": ("faults/test_one_writer.py", "faults/test_split_brain.py"),
    "iobench/storage/nfs": ("contract/test_nfs.py", "faults/test_nfs_faults.py"),
    "iobench/storage/s3": (
        "contract/test_s3.py",
        f"{_LOOP}[s3-checkpoint]",
        f"{_LOOP}[s3-generate]",
        "faults/test_event_loop.py",
        "e2e/test_every_verb.py::test_every_verb[s3]",
        "faults/test_s3.py",
    ),
    "action.yml": ("e2e/test_stranger.py",),
    "pyproject.toml": ("e2e/test_packages.py", "e2e/test_stranger.py"),
    "workloads": ("e2e/test_workloads.py",),
}
"""For each folder or file: nightly tests that also run when it, or a file in it, has changed."""

FIRST = (
    "faults/test_fault_loop.py",
    "e2e/test_workloads.py",
    "e2e/test_packages.py",
    "contract/test_s3.py",
    "faults/test_one_writer.py",
    "faults/test_s3.py",
    "faults/test_runs.py",
    "faults/test_read_faults.py",
    "e2e/test_checkpoint.py",
    "e2e/test_cli.py",
    "contract/test_loader.py",
    "contract/test_transports.py",
    "e2e/test_every_verb.py",
)
"""Files that take longest. They begin first, so that no process works on one at the end alone."""


@cache
def tier_of_file(path: Path) -> str:
    """Return the tier of a file's tests that have no mark of their own."""
    file = str(path.relative_to(TESTS))
    return TIER_OF.get(file) or TIER_OF.get(file.split("/")[0], FAST)


def tier_of(item: pytest.Item) -> str:
    """Return the tier of a test: its file's, or a later one that a mark of its own names."""
    marks = [tier for tier in TIERS if item.get_closest_marker(tier)]
    return max([tier_of_file(item.path), *marks], key=TIERS.index)


def nothing_to_run(path: Path, asked: str) -> bool:
    """Return whether a file has no test of the tier that ``-m asked`` begins with.

    Such a file isn't imported: each of the processes of a run would.
    """
    tier = asked.split(" ")[0]
    if tier not in TIERS or path.suffix != ".py":
        return False
    return TIERS.index(tier_of_file(path)) > TIERS.index(tier)


def order(path: Path) -> int:
    """Return when the tests of a file begin: a lower number first."""
    names = [TESTS / name for name in FIRST]
    return names.index(path) if path in names else len(names)


def touched(changed: list[str]) -> list[str]:
    """Return the nightly tests that a change of these files of the project runs."""
    return sorted(
        {
            f"tests/{name}"
            for folder, names in TOUCHED.items()
            for name in names
            for file in map(Path, changed)
            if file.is_relative_to(folder) or file.is_relative_to(f"tests/{file_of(name)}")
        }
    )


def file_of(name: str) -> str:
    """Return the file or folder that a test of ``TOUCHED`` lies in."""
    return name.partition("::")[0]


def _changed_since(commit: str) -> list[str]:
    """Return the files that were changed since a commit, committed or not."""
    listed = subprocess.run(
        ["git", "diff", "--name-only", commit], cwd=TESTS.parent, stdout=subprocess.PIPE, check=True
    )
    return listed.stdout.decode().splitlines()


if __name__ == "__main__":
    print(*touched(_changed_since(sys.argv[1])), sep="\n")

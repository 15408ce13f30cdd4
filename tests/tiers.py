"""Which tests run when: four tiers, and what of the last one a change of a folder runs, too.

- ``fast``: ``make test``, in minutes: each verb once, contracts, security, a short oracle for each
  answer.
- ``slow``: what ``make test-all`` adds: faults, the command line, libraries, each verb in full,
  more oracles.
- ``nightly``: what ``make test-nightly`` adds: real servers, loops over every fault, browsers,
  launchers, examples of documents, long oracles. Some of it also runs on a change
  (``make test-slow SINCE=COMMIT``, the mark ``touched``); ``TOUCHED`` says which.
- ``gpu``: ``make test-gpu``, for hosts with a CUDA device; no other command runs them.

A file belongs to the tier of the table here, or else is fast; a test's own mark moves it to a later
tier. Tests with the mark ``alone`` measure speeds: those that are nightly run one at a time, beside
nothing, and the others, which mostly wait, two at a time.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

FAST, SLOW, NIGHTLY, GPU = TIERS = ("fast", "slow", "nightly", "gpu")

_SLOW = (
    *("oracle", "faults", "fuzz"),
    # Mistakes, terminals, and each operation that can fail.
    *("e2e/test_bad_input.py", "e2e/test_cli.py", "e2e/test_live.py", "e2e/test_terminals.py"),
    # Every format, library and writer through whole commands.
    *("contract/test_checkpoint.py", "contract/test_loader_libraries.py", "contract/test_lock.py"),
    *("e2e/test_checkpoint.py", "e2e/test_cold.py", "e2e/test_loader_libraries.py"),
    *("e2e/test_scan.py", "e2e/test_scan_tables.py", "e2e/test_sweep.py"),
    # Each verb in full: test_every_verb.py has all of them in short.
    *("e2e/test_ab.py", "e2e/test_advised_commands.py", "e2e/test_check.py", "e2e/test_kv.py"),
    *("e2e/test_serve.py", "e2e/test_requests.py", "e2e/test_model_load.py"),
    *("e2e/test_ablation_runs.py", "e2e/test_own_loader.py", "e2e/test_probe.py"),
    *("e2e/test_sync.py", "e2e/test_train.py", "security/test_own_network.py"),
    "e2e/test_hosts.py",
)
_NIGHTLY = (
    "browser",
    # Real servers. They also run on a change of what talks to them.
    *("contract/test_fsspec.py", "contract/test_nfs.py", "contract/test_s3.py"),
    *("faults/test_event_loop.py", "faults/test_nfs_faults.py", "faults/test_s3.py"),
    *("faults/test_fault_loop.py", "faults/test_split_brain.py"),
    # Other hosts.
    *("e2e/test_hosts_training.py", "e2e/test_hosts_trials.py", "e2e/test_hosts_verbs.py"),
    # The reference workloads, packages, the action, and examples of the documents, whole.
    *("e2e/test_action.py", "e2e/test_packages.py", "e2e/test_plug_in_example.py"),
    *("e2e/test_workloads.py", "unit/test_mutations.py"),
    # Long oracles, which also follow the advice.
    *("oracle/test_causes_stages.py", "oracle/test_causes_storage.py"),
    "oracle/test_claims.py",  # seeded: the same on each machine until its code changes
    *("oracle/test_fed_oracle.py", "oracle/test_hosts_ended.py", "oracle/test_hosts_oracle.py"),
    *("oracle/test_planted_loaders_oracle.py", "oracle/test_size_oracle.py"),
    *("oracle/test_sweep_oracle.py", "oracle/test_sync_oracle.py", "oracle/test_transfer.py"),
    *("oracle/test_two_machines.py", "oracle/test_verdict_oracle.py"),
)
TIER_OF = {
    **dict.fromkeys(_SLOW, SLOW),
    **dict.fromkeys(_NIGHTLY, NIGHTLY),
    "oracle/test_short.py": FAST,  # one short oracle for each answer
    "gpu": GPU,
}
"""Files and folders that are not fast, below ``tests``."""

_LOOP = "faults/test_event_loop.py"
_METRICS = "oracle/test_claims.py::test_several_metrics_together_are_rarely_different_by_chance"
_KEYS = "faults/test_wrong_kinds.py::test_every_key_of_a_run[calibrated]"
_SCRIPT = "contract/test_loader.py::test_a_script_that_ends_with_an_iterator_in_use_says_nothing"

TOUCHED = {
    "action.yml": (
        "e2e/test_action.py::test_a_run_is_shown_and_kept_and_its_threshold_decides",
        "e2e/test_action.py::test_github_knows_every_key",
    ),
    "datasets": ("e2e/test_workloads.py::test_a_workload_runs_at_its_own_sizes[demo]",),
    "deploy": ("e2e/test_deploy.py",),
    "docs/api.md": ("unit/test_public_surface.py::test_the_pages_examples_run",),
    "examples/plug-in": ("e2e/test_plug_in_example.py",),
    "iobench/api.py": ("unit/test_public_surface.py::test_the_docstrings_examples_run",),
    "iobench/ask/compare/claims.py": (_METRICS,),
    "iobench/ask/compare/history.py": (
        "oracle/test_claims.py::test_histories_without_a_change_rarely_have_one",
    ),
    "iobench/ask/compare/sequential.py": (
        "oracle/test_claims.py::test_turns_tell_a_tenth_within_the_promised_number",
    ),
    "iobench/checkpoint": (
        "faults/test_checkpoint.py::test_a_rank_that_dies_ends_the_others_save",
    ),
    "iobench/cli": ("e2e/test_live.py::test_lines_of_forked_processes_stay",),
    "iobench/data/generator": ("faults/test_fault_loop.py::test_a_verb_survives_faults[generate]",),
    "iobench/judge/rebuild.py": (_KEYS,),
    "iobench/judge/statistics.py": (_METRICS,),
    "iobench/load/engines": (f"{_SCRIPT}[io_uring]",),
    "iobench/load/libraries": (
        "contract/test_loader_libraries.py::TestLibraries::"
        "test_each_sample_once_in_every_epoch_and_in_another_order",
    ),
    "iobench/load/loader.py": (f"{_SCRIPT}[by-threads]",),
    "iobench/record": (_KEYS,),
    "iobench/report/page": (
        "browser/test_behaviour.py::test_the_figures_of_a_page_are_those_of_its_record",
    ),
    "iobench/runner/hosts": (
        "e2e/test_hosts_verbs.py::test_a_lost_first_host_leaves_no_manifest_and_no_worker",
        "e2e/test_hosts_verbs.py::test_three_hosts_write_the_dataset_that_one_host_writes",
    ),
    "iobench/storage/fsspec": ("contract/test_fsspec.py::TestFiles",),
    "iobench/storage/locks": (
        "faults/test_split_brain.py::test_who_was_suspended_deletes_nothing[local-generate]",
    ),
    "iobench/storage/nfs": ("contract/test_nfs.py::TestNfs",),
    "iobench/storage/s3": (
        "contract/test_s3.py::TestS3::test_what_is_written_is_read",
        "contract/test_s3.py::test_an_upload_that_fails_is_aborted[rclone-obstore]",
        f"{_LOOP}::test_a_server_understands_the_signed_requests[rclone-EventLoopEngine]",
        f"{_LOOP}::test_faults_are_survived_and_counted[0-EventLoopEngine]",
        "faults/test_s3.py::test_no_secret_is_ever_told[obstore]",
    ),
    "pyproject.toml": (
        "e2e/test_packages.py::test_the_demo_runs_with_the_stated_dependencies_alone",
    ),
    "sweeps/published": ("unit/test_published_sweeps.py",),
    "tools/mutations.py": ("unit/test_mutations.py",),
    "workloads": ("e2e/test_workloads.py::test_a_workload_runs_at_its_own_sizes[unet3d-h100]",),
}
"""For each folder or file: nightly tests that also run when it, or a file in it, has changed.

The most telling one for each that takes few seconds of CPU: a change of all folders runs them all,
and belongs to what a change may take.
"""

FIRST = (
    *("faults/test_fault_loop.py", "e2e/test_workloads.py", "e2e/test_packages.py"),
    *("e2e/test_action.py", "contract/test_s3.py", "e2e/test_sweep.py"),
    *("e2e/test_requests.py", "e2e/test_kv.py", "e2e/test_every_verb.py", "e2e/test_ab.py"),
    *("faults/test_runs.py", "faults/test_read_faults.py", "e2e/test_hosts.py"),
    *("e2e/test_terminals.py", "faults/test_one_writer.py", "faults/test_s3.py"),
    *("faults/test_wrong_kinds.py", "e2e/test_check.py", "e2e/test_cold.py"),
    *("e2e/test_advised_commands.py", "contract/test_loader.py", "contract/test_transports.py"),
)
"""Files that take longest. They begin first, so that no process works on one at the end alone."""

_PLACES = {TESTS / name: place for place, name in enumerate(FIRST)}


@cache
def tier_of_file(path: Path) -> str:
    """Return the tier of a file's tests that have no mark of their own."""
    file = str(path.relative_to(TESTS))
    return TIER_OF.get(file) or TIER_OF.get(file.split("/")[0], FAST)


def tier_of(item: pytest.Item) -> str:
    """Return the tier of a test: its file's, or a later one that a mark of its own names."""
    marks = (mark.name for mark in item.iter_markers())
    return max(
        [tier_of_file(item.path), *(each for each in marks if each in TIERS)], key=TIERS.index
    )


def nothing_to_run(path: Path, asked: str) -> bool:
    """Return whether a file has no test of the tier that ``-m asked`` begins with.

    Such a file isn't imported: each of the processes of a run would.
    """
    tier = asked.lstrip("(").split(" ")[0]
    if tier not in TIERS or path.suffix != ".py" or tier_of_file(path) == tier:
        return False
    if "touched" in asked and any(path == TESTS.parent / file_of(name) for name in wanted()):
        return False
    if TIERS.index(tier_of_file(path)) > TIERS.index(tier):
        return True
    # A mark makes some of its tests later ones. ``EACH_WRITER`` and ``one_of`` have it elsewhere.
    text = path.read_text(encoding="utf-8")
    return not any(word in text for word in (f"mark.{tier}", "EACH_WRITER", "one_of("))


@cache
def wanted() -> tuple[str, ...]:
    """Return the nightly tests to run for what was changed since the commit ``$SINCE``."""
    since = os.environ.get("SINCE")
    return tuple(touched(_changed_since(since))) if since else ()


def is_wanted(item: pytest.Item) -> bool:
    """Return whether a nightly test is to run for what was changed."""
    return tier_of(item) == NIGHTLY and any(
        item.nodeid == name or item.nodeid.startswith((f"{name}[", f"{name}::"))
        for name in wanted()
    )


def order(path: Path) -> int:
    """Return when the tests of a file begin: a lower number first."""
    return _PLACES.get(path, len(_PLACES))


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

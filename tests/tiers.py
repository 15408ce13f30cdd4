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

_CLAIMS = "oracle/test_claims.py"
_RUNS = f"{_CLAIMS}::test_runs_are_not_called_different_or_equal_by_chance"
_LOOP = "faults/test_fault_loop.py::test_a_verb_survives_faults"
_PAGES = "browser/test_behaviour.py"
_SAVES = "e2e/test_hosts_training.py"
_VERBS = "e2e/test_hosts_verbs.py"
_KEYS = "faults/test_wrong_kinds.py::test_every_key_of_a_run[calibrated]"
_SCRIPT = "contract/test_loader.py::test_a_script_that_ends_with_an_iterator_in_use_says_nothing"
_SIGNED = "faults/test_event_loop.py::test_a_server_understands_the_signed_requests"
_PAIRS = ("rclone-obstore", "rclone-s3fs", "rclone-boto3")
"""A server and a client. The other server, swift, takes seconds to begin."""

TOUCHED = {
    "datasets": ("e2e/test_workloads.py::test_a_workload_runs_at_its_own_sizes[demo]",),
    "docs/api.md": ("unit/test_public_surface.py::test_the_pages_examples_run",),
    "iobench/api.py": ("unit/test_public_surface.py::test_the_docstrings_examples_run",),
    "iobench/ask/compare/claims.py": (
        _RUNS,
        f"{_CLAIMS}::test_a_calm_place_does_not_stand_for_a_restless_one",
        f"{_CLAIMS}::test_drift_of_recorded_runs_makes_one_run_a_side_enough",
        f"{_CLAIMS}::test_several_metrics_together_are_rarely_different_by_chance",
    ),
    "iobench/ask/compare/history.py": (
        f"{_CLAIMS}::test_histories_without_a_change_rarely_have_one",
    ),
    "iobench/ask/compare/sequential.py": (
        f"{_CLAIMS}::test_turns_tell_a_tenth_within_the_promised_number",
    ),
    "iobench/checkpoint": (
        "faults/test_checkpoint.py::test_a_rank_that_dies_ends_the_others_save",
        "faults/test_interposed.py::test_what_was_never_synced_or_evicted_is_invalid",
        f"{_LOOP}[checkpoint-stream]",
    ),
    "iobench/cli": (
        "e2e/test_live.py::test_ctrl_c_in_a_run_leaves_nothing",
        "e2e/test_live.py::test_lines_of_forked_processes_stay",
    ),
    "iobench/data/generator": (f"{_LOOP}[generate]",),
    "iobench/judge/rebuild.py": (_KEYS,),
    "iobench/load/engines": (f"{_SCRIPT}[io_uring]",),
    "iobench/load/libraries": (
        "contract/test_loader_libraries.py::TestLibraries",
        "security/test_own_network.py::test_litdata_does_not_ask_for_news",
    ),
    "iobench/load/loader.py": (f"{_SCRIPT}[by-threads]",),
    "iobench/judge/statistics.py": (_RUNS,),
    "iobench/record": (_KEYS,),
    "iobench/report/page": (
        f"{_PAGES}::test_a_page_is_complete_without_scripts_and_moves_nothing",
        f"{_PAGES}::test_a_script_that_others_bring_does_not_run",
        f"{_PAGES}::test_every_control_is_reached_by_the_tab_key_and_seen",
        f"{_PAGES}::test_the_figures_of_a_page_are_those_of_its_record",
        f"{_PAGES}::test_the_timeline_is_zoomed_by_the_mouse",
        "browser/test_pages.py::test_every_chart_is_drawn[calibrated]",
        "browser/test_pages.py::test_every_chart_is_drawn[hostile]",
    ),
    "iobench/runner/hosts": (
        "e2e/test_deploy.py",
        f"{_SAVES}::test_a_host_that_is_killed_during_a_save_leaves_no_checkpoint_that_looks_whole",
        f"{_SAVES}::test_two_hosts_with_unequal_ranks_save_and_restore_one_checkpoint[dcp-1]",
        f"{_SAVES}::test_two_hosts_with_unequal_ranks_save_and_restore_one_checkpoint[stream-20%]",
        f"{_VERBS}::test_a_lost_first_host_leaves_no_manifest_and_no_worker",
        f"{_VERBS}::test_three_hosts_write_the_dataset_that_one_host_writes",
        f"{_VERBS}::test_two_hosts_probe_together_and_each_alone",
        f"{_VERBS}::test_two_hosts_verify_each_a_share_and_one_reports",
    ),
    "iobench/storage/fsspec": ("contract/test_fsspec.py",),
    "iobench/storage/locks": (
        "faults/test_one_writer.py::test_a_killed_writer_keeps_nobody_out",
        "faults/test_one_writer.py::test_a_race_to_save_checkpoints",
        "faults/test_one_writer.py::test_while_a_dataset_is_removed",
        "faults/test_split_brain.py::test_who_was_suspended_deletes_nothing[local-generate]",
        "faults/test_split_brain.py::test_who_was_suspended_deletes_nothing[s3-generate]",
    ),
    "iobench/storage/nfs": (
        "contract/test_nfs.py::TestNfs",
        "faults/test_nfs_faults.py::test_a_server_that_ends_under_a_run_is_one_line_in_time",
    ),
    "iobench/storage/s3": (
        "contract/test_s3.py::TestS3",
        *(f"contract/test_s3.py::test_an_upload_that_fails_is_aborted[{pair}]" for pair in _PAIRS),
        *(f"contract/test_s3.py::test_large_objects_go_up_in_parts[{pair}]" for pair in _PAIRS),
        f"{_LOOP}[s3-generate]",
        "faults/test_event_loop.py::test_a_loader_delivers_the_same_batches",
        f"{_SIGNED}[rclone-EventLoopEngine]",
        f"{_SIGNED}[rclone-OwnConnections]",
        "faults/test_event_loop.py::test_both_fail_in_the_same_words",
        "faults/test_event_loop.py::test_faults_are_survived_and_counted",
        "faults/test_s3.py::test_no_secret_is_ever_told",
        "faults/test_s3.py::test_retries_are_used_up",
        "faults/test_s3.py::test_slow_down_is_counted_as_throttled",
    ),
    "iobench/subject": ("e2e/test_watched_training.py::test_two_ranks_of_torchrun",),
    "action.yml": (
        "e2e/test_action.py::test_a_run_is_shown_and_kept_and_its_threshold_decides",
        "e2e/test_action.py::test_github_knows_every_key",
    ),
    "examples/plug-in": ("e2e/test_plug_in_example.py",),
    "pyproject.toml": (
        "e2e/test_packages.py::test_the_demo_runs_with_the_stated_dependencies_alone",
    ),
    "sweeps/published": ("unit/test_published_sweeps.py",),
    "tools/mutations.py": ("unit/test_mutations.py",),
    "workloads": (
        "e2e/test_workloads.py::test_a_workload_runs_at_its_own_sizes[llm-pretrain]",
        "e2e/test_workloads.py::test_a_workload_runs_at_its_own_sizes[unet3d-h100]",
    ),
}
"""For each folder or file: nightly tests that also run when it, or a file in it, has changed.

The most telling ones, less than about a minute for each folder: a change of all folders runs them
all, and belongs to what a change may take.
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
    marks = [tier for tier in TIERS if item.get_closest_marker(tier)]
    return max([tier_of_file(item.path), *marks], key=TIERS.index)


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

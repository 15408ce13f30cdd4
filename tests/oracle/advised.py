"""Whether the commands that the report of an oracle's run advises are taken by the command line.

Each is planned: its words are parsed, its specifications read and its data opened, up to where it
would measure. A dataset that is advised is really made where it is small, and the command that
reads it is planned on that one.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path
from typing import NoReturn

import pytest

from iobench.judge.again import NEW, job_again
from iobench.record.run import TrainingRecord
from iobench.report.advise import by_hand
from iobench.runner import checking, experiment
from tests.processes import in_process

MAX_MADE_BYTES = 32_000_000
"""A larger dataset is not made."""


def advised(doc: TrainingRecord) -> set[str]:
    """The lines of commands that a report of the run advises, and that of the same run again."""
    verdict = doc.job.verdict
    texts = [each.change for each in verdict.advice] if verdict is not None else []
    texts += [each.basis for each in by_hand(doc)]
    lines = (re.search(r"(?:^|: )(iobench .*)", text) for text in texts)
    return {job_again(doc).line(), *(found[1] for found in lines if found)}


def plan_all(doc: TrainingRecord, scratch: Path) -> None:
    """Assert that each advised command is planned, with exit code 0."""
    made_bytes = 2 * (doc.job.dataset.stored_bytes or 0)
    for line in sorted(advised(doc)):
        place = scratch / "advised"
        commands = [shlex.split(each) for each in line.split("; ")]
        makes = any(words[1] == "generate" for words in commands)
        if makes and made_bytes > MAX_MADE_BYTES:
            continue
        for words in commands:
            planned([str(place) if word == NEW else word for word in words])
        shutil.rmtree(place, ignore_errors=True)


class _Reached(BaseException):
    """A command has come to the place where it would measure."""


def planned(words: list[str]) -> None:
    """Assert that a command gets as far as to the place where it would measure, or succeeds."""

    def here(*arguments: object, **more: object) -> NoReturn:
        raise _Reached

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "run", here)
        patch.setattr(checking, "provided", here)  # of check
        # The other hosts of the job don't try it, too.
        patch.setattr("iobench.cli.hosts.find_launch", lambda environment: None)
        try:
            code, _, err = copy_context().run(in_process, *words[1:], "--quiet")
        except _Reached:
            return
    assert code == 0, (shlex.join(words), err)


def watching(scratch: Path) -> Iterator[None]:
    """Plan the commands of each run that is concluded meanwhile, in this process or a fork."""
    conclude = experiment.write_run

    def concluded(doc: TrainingRecord, *arguments: object, **more: object) -> TrainingRecord:
        found: TrainingRecord = conclude(doc, *arguments, **more)  # type: ignore[arg-type]
        if found.status == "ok":
            plan_all(found, scratch)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "write_run", concluded)
        yield

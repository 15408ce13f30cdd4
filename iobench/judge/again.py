"""The command that measures a recorded job again, with everything that the run had.

All advice that names a command gets it here. The command of the run is repeated where it was one
line of ``iobench``; for a run that began in another way it is put together from the record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..base.errors import IobenchError
from ..base.text import flag_values, quoted, without_flag
from ..base.units import parse_duration
from ..record.job import DatasetFacts, WorkloadFacts
from ..record.run import TrainingRecord
from ..record.sweep import setting_text
from ..settings.dataset import load_dataset_spec
from ..settings.workload import Workload, load_workload

NEW = "NEW"
"""The place of a dataset that is to be made."""

MAX_BUDGET = 10
"""Times as much as a run's budget that is advised at most: a run can be repeated again."""

CHECK_BUDGET_S = 300.0
"""The budget of ``iobench check``, if none is given."""

_ASKED = ("run", "train", "check")
"""Verbs that run one workload by what their line says."""

_ANY = "demo"
"""A dataset and a workload of which any other can be made by settings."""

_OF_A_FORMAT = ("samples_per_shard", "shard_size", "block_size", "columns")
"""Keys of a dataset that another format may not have."""

_OF_ITS_OWN = ("name", "description", "source", "recorded")
"""Keys of a workload that no setting changes."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
"""Names of specifications; a record names no file to read."""

Settings = Mapping[str, object]


@dataclass(frozen=True)
class JobAgain:
    """How to do a recorded job again.

    ``words``: the command, as it was given or as it would be; ``on_data``: the one that reads other
    data. ``budget_s``: the time that it had for all; None: it had no limit. ``data``: the words of
    ``iobench generate`` that make the same dataset; empty if iobench did not make it, or if that is
    not known.
    """

    words: tuple[str, ...] = ("iobench", "run", "WORKLOAD", "--data", "DIR")
    on_data: tuple[str, ...] = ("iobench", "run", "WORKLOAD", "--data", "DIR")
    budget_s: float | None = None
    data: tuple[str, ...] = ()

    @property
    def data_is_given(self) -> bool:
        """Whether the command reads data that it names, and makes none for a while."""
        return self.words[1:2] != ("check",)

    def line(self, changes: Settings | None = None, *, data: str | None = None) -> str:
        """The command, with ``changes`` as by ``--set`` and perhaps on other data."""
        words = [*(self.words if data is None else self.on_data)]
        for key, value in (changes or {}).items():
            words = [*without_flag(words, "--set", key), "--set", f"{key}={setting_text(value)}"]
        if data is not None:
            # What belongs to the other data's place goes with it.
            words = [*without_flag(without_flag(words, "--origin"), "--data"), "--data", data]
        return _line(words)

    def longer(self, factor: float, changes: Settings) -> str:
        """The command that measures for about ``factor`` times as long.

        By ``changes``, unless the run was fitted to a budget: then by a larger one.
        """
        if self.budget_s is None:
            return self.line(changes)
        seconds = self.budget_s * min(MAX_BUDGET, factor)
        return _line([*without_flag([*self.words], "--budget"), "--budget", f"{seconds:g}s"])

    def generate(self, samples: int | None = None, *settings: str) -> str:
        """The command that makes the dataset at ``NEW``, with other settings; empty: unknown."""
        if not self.data:
            return ""
        words = [*self.data]
        if any(setting.startswith("format=") for setting in settings):
            for key in _OF_A_FORMAT:
                words = without_flag(words, "--set", key)
        for setting in settings:
            key = setting.partition("=")[0]
            words = [*without_flag(words, "--set", key), "--set", setting]
        if samples is not None:
            words = [*without_flag(words, "--samples"), "--samples", str(samples)]
        return _line(words)


def job_again(doc: TrainingRecord) -> JobAgain:
    """How to do the job of a record again."""
    job, command = doc.job, tuple(doc.command)
    data = tuple(_generated(job.dataset))
    if command[:1] == ("iobench",) and len(command) > 2 and command[1] in _ASKED:
        budget = flag_values(command, "--budget")
        budget_s = CHECK_BUDGET_S if command[1] == "check" else None
        if budget:
            try:
                budget_s = parse_duration(budget[-1])
            except (IobenchError, ValueError):
                budget_s = None
        on_data = tuple(_put_together(doc)) if command[1] == "check" else command
        return JobAgain(command, on_data, budget_s, data)
    words = tuple(_put_together(doc))
    return JobAgain(words, words, None, data)


def _put_together(doc: TrainingRecord) -> Iterator[str]:
    """The words of ``iobench run`` for a run that began in another way."""
    job = doc.job
    base = _base(job.workload.name)
    yield from ("iobench", "run", base.name)
    yield from ("--data", job.dataset.location or doc.storage.url or "DIR")
    if job.dataset.origin:
        yield from ("--origin", job.dataset.origin)
    if job.accelerators != 1:
        yield from ("--accelerators", str(job.accelerators))
    user = job.loader.user if job.subject.users else None
    if user is not None:
        yield from ("--loader", user.factory or "MODULE:FUNCTION")
        for name, text in user.arguments.items():
            yield from ("--loader-args", f"{name}={text}")
    for key, value in _differing(job.workload, base):
        # What a loader of the user's own does is no setting, and its batches scale the step.
        if not (user is not None and (key.startswith("loader.") or key in _BY_LOADER)):
            yield from ("--set", f"{key}={setting_text(value)}")


_BY_LOADER = ("batch_size", "accelerator.step_time")


def _base(name: str) -> Workload:
    """The workload of which a recorded one is made by settings: that of its name, if there is one.

    A workload in a file of the user's own, or made in Python, is made of ``_ANY``.
    """
    try:
        return load_workload(name if _NAME.fullmatch(name) else _ANY)
    except IobenchError:
        return load_workload(_ANY)


def _differing(workload: WorkloadFacts, base: Workload) -> Iterator[tuple[str, object]]:
    """The settings of a workload that are not those of the base."""
    before = dict(_flat(base.model_dump(mode="json")))
    unused = workload.accelerator.without_effect
    none = {*_OF_ITS_OWN, *(f"accelerator.{key}" for key in unused)}
    for key, value in _flat(workload.model_dump(mode="json", exclude_unset=True)):
        if none.isdisjoint((key, key.split(".")[-1])) and before.get(key) != value:
            yield key, value


def _flat(settings: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    """Each value of nested settings under its whole key; lists are left out."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        elif not isinstance(value, list | tuple):
            yield f"{above}{key}", value


def _generated(dataset: DatasetFacts) -> Iterator[str]:
    """The words that generate a dataset again; none if iobench did not make it."""
    spec = dataset.spec
    if dataset.origin is not None or spec is None:
        return
    base = spec.name if _NAME.fullmatch(spec.name) else _ANY
    try:
        usual = load_dataset_spec(base)
    except IobenchError:
        usual = load_dataset_spec(base := _ANY)  # a specification in a file of the user's own
    before = dict(_flat(usual.model_dump(mode="json")))
    yield from ("iobench", "generate", base, "--to", NEW)
    if dataset.samples:
        yield from ("--samples", str(dataset.samples))
    for key, value in _flat(spec.model_dump(mode="json")):
        if key in ("samples", "description", "source") or before.get(key, value) == value:
            continue
        yield from ("--set", f"{key}={setting_text(value)}")


def _line(words: list[str]) -> str:
    return " ".join(map(quoted, words))

"""A checkpoint study, and checkpoints during a run.

A study claims the target, builds the states, saves, restores cold, concludes, and writes. Whatever
happens on the way (a full disk, a rank that dies, Ctrl-C), what was measured until then is written,
and the checkpoints that are complete stay complete.

During a run, saves and reads compete for the storage as in a training. After each save a thread of
the rank changes the state for the next one, so that no storage can store equal blocks once. That
takes 0.03 s and its checksums 0.11 s of CPU for each GiB, beside the steps. Where saves have only
what changes of the state, all of them are based on the whole state that was saved alone: what does
not change is the same in the ranks of every phase.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..checkpoint import WRITERS
from ..checkpoint.catalog import CheckpointRoot
from ..checkpoint.manifest import BaseCheckpoint
from ..record.checkpoint import CheckpointRun, Study
from ..record.run import CheckpointRecord, Finding
from ..storage.locks.lock import Lease
from .budget import Budget
from .checkpoint_pilot import Expected, measure_pilot
from .checkpoint_plan import StudyPlan
from .conductor import Script
from .hosts.hosts import Hosts
from .options import Mixed, Observer, StudyOptions, timed
from .phase import Saving
from .results import failures_recorded, new_record, run_directory, storage_facts
from .study import HEAD_START_NS, SaveRecords, StudyJob, begin_study, rank_maker, with_leftovers


def run_study(
    plan: StudyPlan,
    options: StudyOptions,
    *,
    observer: Observer | None = None,
    hosts: Hosts | None = None,
) -> tuple[CheckpointRecord, Path]:
    """Run the plan; return the concluded document and its directory.

    ``hosts``: of the ranks; by default this one.

    Step numbers continue from the latest in the target. The study's own checkpoints are removed at
    the end, except the last one with ``keep_data``; others stay. Raises TargetRefusedError if the
    target belongs to somebody else (TargetHeldError: another process works there), before anything
    is written. Raises InterruptedRun or the failure after the document was written; complete
    checkpoints then stay, as those of a training would.
    """
    root = CheckpointRoot.open(plan.url)
    with (
        root.held("checkpoint", break_lock=options.break_lock) as lease,
        run_directory(options.results, f"checkpoint-{plan.spec.model}") as directory,
    ):
        study = _Study(
            plan, directory, options, root, lease, observer or Observer(), hosts or Hosts()
        )
        return study.run(), directory


class _Study:
    """One call of ``run_study``, in a target that is held."""

    def __init__(
        self,
        plan: StudyPlan,
        directory: Path,
        options: StudyOptions,
        root: CheckpointRoot,
        lease: Lease,
        observer: Observer,
        hosts: Hosts,
    ) -> None:
        self.plan, self.options, self.root, self.lease = plan, options, root, lease
        self.observer, self.hosts, self.budget = observer, hosts, options.budget
        self.expected = Expected()
        self.directory = directory
        study = begin_study(plan, CheckpointRun)
        study.budget_s = self.budget.seconds
        self.before = root.last_number()
        self.job = StudyJob(plan, root, study, hosts, self.before)
        self.doc = new_record(
            CheckpointRecord,
            self.directory.name,
            options.command,
            rules=options.rules,
            hosts=self.job.agent.describe_all(),
            storage=storage_facts(root.storage),
            findings=unlocked(lease),
            job=study,
        )

    def run(self) -> CheckpointRecord:
        doc, root = self.doc, self.root
        with failures_recorded(doc) as ending:
            self.hosts.begin(doc, self.plan.spec.ranks)
            self.hosts.check_place(self.plan, root)
            if self.budget.limited:
                with timed(doc, "pilot", self.observer, "a pilot: what a small save takes"):
                    self.expected = measure_pilot(
                        self.plan, root, self.budget, self.before, self.hosts
                    )
                # A storage may know the size of an object that a small save has replaced.
                self.job.step += self.expected.steps
            self.observer.phase("building the state")
            self.job.run(self._script())
        self.hosts.end(doc, self.plan.spec.ranks)
        doc = ending.write(doc, self.directory, explain=lambda error: with_leftovers(error, root))
        if self.options.keep_data:
            root.keep(1, above=self.before)
        else:
            root.leave(above=self.before)
        return doc

    def _script(self) -> Script:
        """All saves, and then all restores."""
        job, spec, timings = self.job, self.plan.spec, self.doc.timings
        began = time.monotonic()
        if self.plan.partial:
            self.observer.phase("saving the whole state")
        with self.budget.trial(BASE):
            yield from job.base()
        half = min(spec.restore_count, spec.count)
        # As many restores as saves are asked for, and each should take about as long.
        yield from self._each("save", spec.count, job.save, half)
        yield from job.drain()
        saved = time.monotonic()
        timings["save"] = saved - began
        yield from self._each("restore", spec.restore_count, job.restore)
        timings["restore"] = time.monotonic() - saved

    def _each(self, what: str, count: int, part: Callable[[], Script], waiting: int = 0) -> Script:
        """Make saves or restores: one, and as many more as there is time for.

        Each should take as long as those so far. After them, as many others as were made, but at
        most ``waiting``, need as much time again, or what the pilot told, and each that of the
        whole state besides. Restores for which there is no time at all are left out.
        """
        budget, restore_s = self.budget, self.expected.restore_s
        if what == "restore" and count and not budget.ends_in_time(restore_s):
            self.doc.job.no_restores = NO_TIME
            return
        if not budget.ends_in_time(self.expected.save_s + restore_s):
            waiting = 0  # they will be left out
        for number in range(1, count + 1):
            each, others = budget.mean_s(what), min(waiting, number)
            if each is not None and not budget.fits(
                each + (max(each, restore_s) + budget.spent_s(BASE)) * others
            ):
                return
            left = None if each is None else each * (count - number + 1)
            self.observer.expect(left, more=each is not None and waiting > 0)
            self.observer.phase(f"{what} {number} of {count}")
            with budget.trial(what):
                self.lease.check()
                yield from part()


def unlocked(lease: Lease) -> list[Finding]:
    """What a record says where nobody was kept out of the target."""
    if not lease.unregistered:
        return []
    evidence = f"the place that was written to was {lease.unregistered}"
    return [Finding(rule="storage.unlocked", level="info", evidence=evidence)]


NO_TIME = "the budget had no time for a restore: raise --budget"

BASE = "whole state"
"""The name of its save in a budget, where saves have only what changes."""

ALONE = 3
"""Saves while nothing else runs, for comparison."""

_PART, _ALONE_SHARE = "saves alone", 0.1
"""Their name in a budget, and the share of it that they have; one is always made."""

_STRIDE = 1_000_000
"""Distance between the numbers of the first saves of two phases."""


@contextmanager
def saving_to(mixed: Mixed | None, hosts: Hosts, *, break_lock: bool) -> Iterator[Saver | None]:
    """Claim the target of a run's checkpoints, and lock it exclusively; None without a target.

    Raises TargetRefusedError, also TargetHeldError if another process saves there.
    """
    if mixed is None:
        yield None
        return
    root = CheckpointRoot.open(mixed.plan.url)
    with root.held("run", break_lock=break_lock) as lease:
        yield Saver(mixed, root, lease, hosts)


class Saver:
    """The checkpoints of one run, in a target that the run holds (see ``saving_to``).

    ``telling_saves``: how many in a row tell what they cost. The first one of an asynchronous
    writer waits for none before it, and looks free.
    """

    def __init__(self, mixed: Mixed, root: CheckpointRoot, lease: Lease, hosts: Hosts) -> None:
        self.plan, self.every = mixed.plan, mixed.every
        self.root, self._lease, self.hosts = root, lease, hosts
        self._before = root.last_number()
        self._phases = 0
        self._base: BaseCheckpoint | None = None
        self.save_s = 0.0  # of the longest save alone
        self.asynchronous = WRITERS.load(mixed.plan.spec.writer).asynchronous
        self.telling_saves = 3 if self.asynchronous else 1
        self.study: Study = begin_study(mixed.plan, Study)
        self.study.every = mixed.every
        self.study.storage = storage_facts(root.storage)
        self.findings = unlocked(lease)

    @property
    def blocked_s(self) -> float:
        """How long the ranks stand still for the longest save alone."""
        alone = [save.blocked_s for save in self.study.alone if self.asynchronous]
        return min(self.save_s, max(alone, default=self.save_s))

    def alone(self, observer: Observer, budget: Budget) -> None:
        """Save a few times while nothing else runs, in a small part of a budget.

        Raises UsageError if the ranks' hosts do not all see the target.
        """
        self.hosts.check_place(self.plan, self.root)
        if budget.seconds is not None:
            budget.limits[_PART] = _ALONE_SHARE * budget.seconds
        quiet = self.study.model_copy(update={"saves": []})
        job = StudyJob(self.plan, self.root, quiet, self.hosts, self._before)

        def script() -> Script:
            yield from job.base()
            for number in range(1, ALONE + 1):
                if number > 1 and not budget.fits(self.save_s, _PART):
                    break
                with budget.trial(_PART):
                    yield from job.save()
                    yield from job.drain()  # the next one waits for no other save
                self.save_s = budget.longest_s(_PART)

        observer.phase("building the state")
        try:
            job.run(script())
        finally:
            self.study.alone, self.study.base = quiet.saves, quiet.base
            self._base = job.records.base

    @contextmanager
    def during(self, *, recorded: bool = True) -> Iterator[Saving]:
        """Provide the saves of one phase; those that are ``recorded`` are added to the study.

        Raises TargetLostError if another process has taken the target over.
        """
        self._lease.check()
        rendezvous = self.hosts.rendezvous()
        with rank_maker(self.plan, self.root, rendezvous) as make:
            study = self.study if recorded else self.study.model_copy(update={"saves": []})
            records = SaveRecords(self.root, self.plan.spec, study, self._base)
            records.head_start_ns = self.hosts.head_start_ns(HEAD_START_NS)
            self._phases += 1
            first = self._before + self._phases * _STRIDE
            yield Saving(
                every=self.every, first=first, records=records, saver=make, rendezvous=rendezvous
            )
            self.root.keep(self.plan.spec.keep, above=self._before)

    def end(self, failure: Exception | None) -> Exception | None:
        """Remove the run's checkpoints from the target; after a failure, report what is left."""
        if failure is not None:
            return with_leftovers(failure, self.root)
        self.root.leave(above=self._before)
        return None

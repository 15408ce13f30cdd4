"""A checkpoint study whose ranks are on many hosts, and save to one place that all of them see.

Each rank writes its own files. The controller commits a checkpoint when all ranks of all hosts have
said that theirs are durable, and finds their files at the place itself. A host that is lost before
that ends the study, and its last checkpoint is not committed.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from ...base.errors import HostLostError, UsageError
from ...checkpoint.catalog import CheckpointRoot
from ...checkpoint.manifest import part_name
from ...record.run import CheckpointRecord
from ..agent import HostAgent
from ..checkpoint_plan import StudyPlan
from ..crew import Crew, ForkedCrew
from ..study import rank_maker
from ..tasks.checkpoint import Checkpoint
from .agents import HostsAgent
from .control import Control
from .crew import HostsCrew, begins_of, head_start_ns
from .facts import known_hosts, same_machines
from .orders import SavesOrder
from .place import text_at
from .ranked import RankedAgent

log = logging.getLogger(__name__)


def same_of_study(plan: StudyPlan) -> dict[str, str]:
    """What must be the same on all hosts."""
    settings = plan.spec.model_dump_json()
    return {"to": plan.url, "settings": hashlib.sha256(settings.encode()).hexdigest()}


class HostsSaves:
    """The ranks of a study on all hosts; see ``study.StudyRanks``."""

    def __init__(self, control: Control) -> None:
        self.control = control

    @property
    def head_start_ns(self) -> int:
        """Known when the clocks are."""
        return head_start_ns(self.control)

    def agent(self, root: CheckpointRoot) -> HostAgent:
        return HostsAgent(root.storage, self.control)

    def begin(self, doc: CheckpointRecord) -> None:
        self.control.set_clocks(again=True)
        doc.job.hosts = known_hosts(self.control, doc.job.ranks)
        doc.job.started_by = self.control.meeting.launch.by
        doc.findings += same_machines(doc.job.hosts)

    def end(self, doc: CheckpointRecord) -> None:
        """Measure the clocks a last time, and record them; a lost host keeps what is known."""
        try:
            self.control.set_clocks(again=True)
        except (HostLostError, KeyboardInterrupt) as error:
            log.info("the clocks were not measured again: %s", error)
        if doc.job.hosts:
            doc.job.hosts = known_hosts(self.control, doc.job.ranks)

    def check_place(self, plan: StudyPlan, root: CheckpointRoot) -> None:
        """Every host must read there what this one has written, as it was written just now.

        It lies where a rank's part of the next checkpoint would, which is removed like any other.
        """
        step = root.step(root.last_number() + 1)
        key, text = step.key(part_name(0)), secrets.token_hex(16)
        try:
            step.prepare()
            with root.storage.create(key, size_hint=len(text)) as sink:
                sink.write(text.encode())
            found = self.control.ask(RankedAgent.text, lambda: text_at(plan.url, key), key)
        finally:
            root.remove(step)
        for host, seen in zip(self.control.meeting.hosts, found, strict=True):
            if seen != text:
                raise UsageError(
                    f"{host.label} does not see what {self.control.meeting.hosts[0].label} writes "
                    f"to {root.url}",
                    remedy="name a place that all hosts share, with the same path on each",
                )

    def rendezvous(self) -> str:
        return self.control.rendezvous()

    @contextmanager
    def crew(self, plan: StudyPlan, root: CheckpointRoot) -> Iterator[Crew]:
        control = self.control
        control.set_clocks()
        shares = control.share(plan.spec.ranks)
        rendezvous = self.rendezvous()
        order = SavesOrder(accelerators=plan.spec.ranks, rendezvous=rendezvous)
        begins = begins_of(control, order, shares)
        with rank_maker(plan, root, rendezvous) as make:
            local = ForkedCrew(len(shares[0]), Checkpoint(make), first=0, world=plan.spec.ranks)
            yield HostsCrew(control, local, begins)

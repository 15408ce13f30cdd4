"""What the ranks of a host save, and where: all hosts must see the same place."""

from __future__ import annotations

from collections.abc import Callable

from ...base.errors import MissingObjectError
from ...checkpoint.catalog import CheckpointRoot
from ...storage import open_storage
from ...storage.catalog import read_object
from ..checkpoint_plan import StudyPlan
from ..messages import Link
from ..study import rank_maker
from ..tasks.checkpoint import CheckpointRank
from .interface import set_interface
from .meeting import Meeting


class SavesThere:
    """What the ranks of a host that is not the controller's save, and where."""

    def __init__(self, meeting: Meeting, plan: StudyPlan) -> None:
        self.meeting, self.plan = meeting, plan
        self.root = CheckpointRoot.open(plan.url)

    def maker(self, rendezvous: str) -> Callable[[Link], CheckpointRank]:
        """As ``rank_maker``; the ranks meet those of the other hosts."""
        set_interface(self.meeting)
        # The context only removes a directory in which these ranks do not meet.
        with rank_maker(self.plan, self.root, rendezvous) as make:
            return make


def text_at(url: str, key: str) -> str:
    """A short text at this place; empty if there is none. No handle of it stays open."""
    storage = open_storage(url)
    try:
        return read_object(storage, key, max_bytes=1000).decode(errors="replace")
    except MissingObjectError:
        return ""
    finally:
        storage.close()

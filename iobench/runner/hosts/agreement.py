"""Before anything is done, all hosts say what they are about to do, and it must be the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...base.errors import IobenchError, UsageError
from ...record.typed import to_text
from .control import Control, named
from .meeting import Joined, Meeting
from .words import Message, refused

T = TypeVar("T")

Same = dict[str, str]
"""What a host is about to do, by the names of what must be the same on all hosts."""

_WHAT = {
    "verb": "was started with '{there}', but {first} with '{here}'",
    "data": "reads {there}, but {first} reads {here}",
    "to": "writes to {there}, but {first} writes to {here}",
    "dataset": "has another dataset at that place than {first}",
    "spec": "would generate another dataset than {first}",
    "objects": "sees other files or objects at that place than {first}",
    "workload": "has another workload than {first}, or other settings of it",
    "settings": "has other settings than {first}",
}
"""What must be the same on all hosts, and what is said of a host where it is not."""


def agree(
    meeting: Meeting,
    make: Callable[[], T],
    same: Callable[[T], Same],
    control: Control | None,
) -> T:
    """Make this host's plan, and see that all hosts are about to do the same.

    ``same``: what must be equal on all hosts, by the names in ``_WHAT``. ``control``: of the
    controller. Raises the error of the first host that can't take part, on all of them, and
    UsageError for hosts with different plans.
    """
    if control is None:
        (wire,) = meeting.wires
        try:
            plan = make()
            wire.send(Message("answer", body=to_text(same(plan), Same)))
        except IobenchError as error:
            wire.send(refused(error))
            raise
        return plan
    try:
        plan = make()
        mine = same(plan)
    except IobenchError as error:
        control.say_bye(error.exit_code, str(named(error, meeting.hosts[0])))
        raise
    failure: IobenchError | None = None
    for peer in control.peers:
        try:
            theirs = peer.answer(Same)
            failure = failure or difference(meeting.hosts[0], mine, peer.host, theirs)
        except IobenchError as error:
            failure = failure or error
    if failure is not None:
        control.say_bye(failure.exit_code, str(failure))
        raise failure
    return plan


def difference(first: Joined, here: Same, host: Joined, there: Same) -> UsageError | None:
    """An error for the first thing that should be the same on both hosts, and is not."""
    for key, value in here.items():
        if value != there.get(key):
            told = _WHAT[key].format(first=first.label, here=value, there=there.get(key))
            return UsageError(f"{host.label} {told}", remedy="start the same command on all hosts")
    return None

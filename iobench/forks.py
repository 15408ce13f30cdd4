"""What must not be shared with a forked child is dropped in the child, before any of its code runs and while it has one thread.

What the parent has already thrown away, and not collected yet, is never finalised in the child: the
end of a client library's object waits for locks that the parent's threads held in the instant of the
fork, and nobody in the child gives them back.

Looking at the process's number on first use instead is a race: two threads of a child that find another number than their own would both
drop and make anew, and the slower one would drop what the faster has made.
"""

from __future__ import annotations

import gc
import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    def after_fork(self) -> None:
        """In the child: forget the parent's handles, locks and threads, and close nothing that the parent still uses."""


_watched: WeakSet[Forked] = WeakSet()


def watch(instance: Forked) -> None:
    """Call its ``after_fork`` in every child that is forked from now on, as long as it lives."""
    _watched.add(instance)


def _in_child() -> None:
    gc.freeze()
    for instance in list(_watched):
        instance.after_fork()


os.register_at_fork(after_in_child=_in_child)

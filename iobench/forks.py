"""Drop, in a forked child, what it must not share with its parent.

That happens before any of the child's code runs, while it has one thread. Objects that the parent
has thrown away but not collected are never finalized in the child: the finalizer of a client
library's object waits for locks that another thread of the parent held at the moment of the fork,
and nobody in the child releases them.

Comparing process numbers at the first use instead would be a race: two threads of a child that see
another number would both reset the object, and the slower one would drop what the faster has made.
"""

from __future__ import annotations

import gc
import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    def after_fork(self) -> None:
        """In the child: forget the parent's handles, locks and threads without closing them."""


_watched: WeakSet[Forked] = WeakSet()


def watch(instance: Forked) -> None:
    """Call the instance's ``after_fork`` in every child forked from now on, while it lives."""
    _watched.add(instance)


def _in_child() -> None:
    gc.freeze()
    for instance in list(_watched):
        instance.after_fork()


os.register_at_fork(after_in_child=_in_child)

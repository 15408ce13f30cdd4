"""The loader under test: what its kind says, in one table that runs, records and reports ask.

A loader is iobench's own, one of a library, or the user's own; a loader of the user's own may also
be watched in a training that iobench does not run. What else a plug-in of a library says of itself
stands in its class (``load/libraries/base.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

OWN_LOADER = "iobench"
"""iobench's own reader in torch's DataLoader, and the default: the other kinds of loader are
libraries."""

USER_LOADER = "user"
"""A loader that the user's own function makes, named by ``loader.factory``."""

USER_READS = (
    "what your loader read of each file is not known; its processes' bytes are in job.loader.user"
)
"""Why reads of a loader of the user's own are not counted."""

_OURS = ("loader.", "reader.")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A kind of loader under test.

    ``reads_itself``: it opens the files, so that iobench's reader has no part in a run: no direct
    IO, no reads ahead, no count of its reads, and no setting of the reader moves it.
    ``users``: the user's own code makes it, and decides what an epoch is and how many workers there
    are. ``watched``: iobench does not run it, so it runs once, as it is.
    """

    kind: str
    reads_itself: bool = True
    users: bool = False
    watched: bool = False

    @property
    def library(self) -> bool:
        """Whether it is one of a library, which can't run without reading and preparing."""
        return self.reads_itself and not self.users

    @property
    def uncounted(self) -> str:
        """Why its reads from storage are not counted; empty if they are."""
        if self.library:
            return f"the reads of loader '{self.kind}' from storage are not counted"
        return USER_READS if self.users else ""

    def moved_by(self, setting: str) -> bool:
        """Whether a key of a workload, such as ``reader.concurrency``, changes what it does.

        The user's code is told the number of workers, and follows it or not.
        """
        return not self.users or setting == "loader.workers" or not setting.startswith(_OURS)


OWN = Subject(kind=OWN_LOADER, reads_itself=False)
"""iobench's own loader."""


def subject_of(kind: str | None, *, watched: bool = False) -> Subject:
    """The loader of this kind; None: iobench's own. One that is watched is the user's."""
    kind = USER_LOADER if watched else kind or OWN_LOADER
    if kind == OWN_LOADER:
        return OWN
    return Subject(kind=kind, users=kind == USER_LOADER, watched=watched)

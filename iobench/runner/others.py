"""Who else read the dataset while a run did: each may have warmed the page cache for the other."""

from __future__ import annotations

from ..errors import StorageError
from ..schema.result import Finding
from ..storage.locks.lock import Lease

_SHOWN = 3


class Others:
    """What was seen of other iobench processes; ``look`` is called while no rank reads."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._seen: dict[str, None] = {}  # in the order in which they came
        self.look()

    def look(self) -> None:
        """Raises TargetLostError where another process has taken the dataset away."""
        self._lease.check()
        try:
            self._seen.update(dict.fromkeys(self._lease.others()))
        except StorageError:
            pass  # what can't be listed can't be seen; the run's own reads tell what is wrong

    def findings(self) -> list[Finding]:
        found = []
        if self._seen:
            shown = list(self._seen)[:_SHOWN]
            more = len(self._seen) - len(shown)
            names = ", ".join(shown) + (f" and {more} more" if more else "")
            found.append(
                Finding(
                    rule="storage.shared",
                    level="warning",
                    evidence=f"other iobench processes read this dataset at the same time: {names}",
                    remedy="run alone: they compete for the storage, "
                    "and each may have warmed the cache for the other",
                )
            )
        if self._lease.unregistered:
            found.append(
                Finding(
                    rule="storage.unlocked",
                    level="info",
                    evidence="no lock could be written beside the dataset, so nobody was kept from "
                    f"changing it, and other readers were not seen: {self._lease.unregistered}",
                )
            )
        return found

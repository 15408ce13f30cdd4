"""Other iobench processes that read the dataset during a run: they may warm the page cache."""

from __future__ import annotations

from ..errors import StorageError
from ..schema.record import Finding
from ..storage.locks.lock import Lease

_SHOWN = 3


class Others:
    """Collects the other readers that were seen. Call ``look`` while no rank reads."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._seen: dict[str, None] = {}  # in the order of their first sighting
        self.look()

    def look(self) -> None:
        """Record the current readers.

        Raises TargetLostError if another process has taken the dataset over.
        """
        self._lease.check()
        try:
            self._seen.update(dict.fromkeys(self._lease.others()))
        except StorageError:
            pass  # without a listing, others are not seen; the run's own reads report real errors

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
                    remedy="run again when they have ended: they compete for the storage, "
                    "and each may have warmed the cache for the other",
                )
            )
        if self._lease.unregistered:
            found.append(
                Finding(
                    rule="storage.unlocked",
                    level="info",
                    evidence="no lock could be written next to the dataset, so nobody was "
                    "kept from changing it, and other readers were not seen: "
                    f"{self._lease.unregistered}",
                )
            )
        return found

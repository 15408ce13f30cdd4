"""The most memory that this process held since a moment: Linux counts it, and lets the count begin anew (proc(5), clear_refs)."""

from __future__ import annotations

from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


class PeakMemory:
    """From the moment it is made. Resident memory, shared pages included; of this process alone, not of those that it starts."""

    def __init__(self) -> None:
        try:
            _CLEAR_REFS.write_text("5")  # the peak becomes what is resident now
            self._before = _resident("VmRSS")
        except OSError:
            self._before = None

    def extra_bytes(self) -> int | None:
        """The peak since then above what was resident then; None where the kernel does not tell."""
        peak = _resident("VmHWM")
        return (
            max(0, peak - self._before) if peak is not None and self._before is not None else None
        )


def _resident(key: str) -> int | None:
    for line in _STATUS.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0]) * 1024
    return None

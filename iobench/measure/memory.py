"""The peak memory of this process since a given moment, from Linux (proc(5), clear_refs)."""

from __future__ import annotations

from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


class PeakMemory:
    """Peak resident memory of this process since this object was made.

    Shared pages are included, child processes are not.
    """

    def __init__(self) -> None:
        try:
            _CLEAR_REFS.write_text("5")  # resets the peak to what is resident now
            self._before = _resident("VmRSS")
        except OSError:
            self._before = None

    def extra_bytes(self) -> int | None:
        """The peak since then, minus what was resident then; None if the kernel does not say."""
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

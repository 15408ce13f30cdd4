"""What the keeper of a lock runs: wait, and beat when it is time. A program, started by its path.

Nothing of iobench is imported before the first heartbeat. Standard input: 8 bytes of length, then a
pickle of (sys.path, seconds between heartbeats, work for ``keeper.make_beat``), then STOP, or the
end. Standard output: why the lock was lost, where it was.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys

STOP = b"s"

_TURN_S = 2.0
"""How soon the end of the parent is noticed where something that it started holds the pipe."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides when the lock is released
    parent = os.getppid()
    task = _exactly(int.from_bytes(_exactly(8), "little"))
    if not task:
        return  # the parent was killed while it said what to do
    sys.path[:], every_s, work = pickle.loads(task)
    beat = None
    left_s = every_s
    while True:
        turn_s = min(_TURN_S, left_s)
        ready, _, _ = select.select([0], [], [], turn_s)
        if ready and os.read(0, 1) == STOP:
            return
        gone = bool(ready) or os.getppid() != parent
        left_s -= turn_s
        if not gone and left_s > 0:
            continue
        if beat is None:
            from iobench.storage.locks.keeper import make_beat

            beat, remove = make_beat(work)
        if gone:
            remove()
            return
        left_s = every_s
        if (lost := beat()) is not None:
            os.write(1, lost.encode())
            return


def _exactly(count: int) -> bytes:
    data = b""
    while len(data) < count and (more := os.read(0, count - len(data))):
        data += more
    return data


if __name__ == "__main__":
    main()

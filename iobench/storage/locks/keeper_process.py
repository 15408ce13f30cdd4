"""The program of the keeper's process: wait, and refresh the lock object when it is time.

It is started by its path, and imports nothing of iobench before the first heartbeat. Standard
input: 8 bytes of length, a pickle of (sys.path, seconds between heartbeats, work for
``objects.make_beat``), then STOP, or the end of the input. Standard output: why the lock was lost,
if it was.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys

STOP = b"s"

_POLL_S = 2.0
"""How soon the parent's end is noticed while another process that it started holds the pipe."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides when the lock is released
    parent = os.getppid()
    task = _exactly(int.from_bytes(_exactly(8), "little"))
    if not task:
        return  # the parent was killed while it sent the task
    sys.path[:], every_s, work = pickle.loads(task)
    beat = None
    left_s = every_s
    while True:
        poll_s = min(_POLL_S, left_s)
        ready, _, _ = select.select([0], [], [], poll_s)
        if ready and os.read(0, 1) == STOP:
            return
        parent_ended = bool(ready) or os.getppid() != parent
        left_s -= poll_s
        if not parent_ended and left_s > 0:
            continue
        if beat is None:
            from iobench.storage.locks.objects import make_beat

            beat, remove = make_beat(work)
        if parent_ended:
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

"""A plug-in of pytest: no test runs for ever, whatever it waits for.

- At its time limit, pytest-timeout sends a signal. Here it is sent again and again, since what the
  test undoes may wait as well, for the same process that does not answer.
- Where no signal helps, since Python waits for code in C, ``faulthandler_timeout`` ends the process
  of the test.
- The process that collects results would wait for one that has died, while a process that it had
  forked holds its pipes. Forked processes give these up.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

AGAIN_S = 30.0


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(settings: Any) -> Iterator[None]:
    was_set = yield
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, min(AGAIN_S, settings.timeout))
    return was_set


def pytest_sessionstart(session: pytest.Session) -> None:
    for plugin in session.config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor":  # of xdist
            pipes: Any = plugin.channel.gateway._io
            for pipe in (pipes.infile, pipes.outfile):
                os.register_at_fork(after_in_child=partial(_give_up, pipe.fileno()))


def _give_up(descriptor: int) -> None:
    """Let it lead nowhere. It stays open, so that no file that is opened takes its place."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)

"""Signals at a bad moment: put off, never lost, and everything is as it was afterwards."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Any

import pytest

from iobench.base.interrupts import defer_interrupts
from tests.processes import signal_at_line


def interrupted(written: list[str], *, discard: bool = False) -> None:
    with defer_interrupts(discard=discard):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        written.append("written")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_handlers_are_back_whenever_a_signal_comes(number: signal.Signals) -> None:
    usual = [signal.default_int_handler] * 2
    found = {line: handlers_after(number, line=line) for line in range(1, 40)}
    assert {line: handlers for line, handlers in found.items() if handlers != usual} == {}


def handlers_after(number: signal.Signals, *, line: int) -> list[Any]:
    """Of SIGINT and SIGTERM, when the signal came at the Nth line that ``interrupts.py`` ran."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with (
            suppress(KeyboardInterrupt),
            signal_at_line(line, "base/interrupts.py", number=number),
            defer_interrupts(),
        ):
            pass
    finally:
        now = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, before)
    return now


def test_ctrl_c_outdoes_an_error() -> None:
    with pytest.raises(KeyboardInterrupt), defer_interrupts():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        raise ZeroDivisionError


def test_ctrl_c_takes_effect_afterwards() -> None:
    written: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(written)
    interrupted(written, discard=True)  # the one that ended the run has had its effect
    assert written == ["written", "written"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

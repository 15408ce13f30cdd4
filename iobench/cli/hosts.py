"""Flags of commands on many hosts, and how such a command goes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from ..base.errors import UsageError
from ..base.units import format_bytes, format_duration, format_rate
from ..runner.hosts.agreement import agree
from ..runner.hosts.control import Control, led
from ..runner.hosts.launch import Launch, find_launch, share_of
from ..runner.hosts.lines import parse_hosts, start_lines
from ..runner.hosts.meeting import Meeting, meet
from ..runner.hosts.serving import Serving
from ..runner.hosts.sharing import HostShare
from ..runner.plan import Plan
from .flags import HostsRequest
from .terminal import note, say, show_data
from .verbs import MeasuringRequest

if TYPE_CHECKING:
    from ..runner.options import Mixed

T = TypeVar("T")

HERE = "here"
"""The value of --hosts for this host alone, whatever has started iobench."""


def printed_lines(request: HostsRequest) -> bool:
    """Print the commands for other engines if that was asked for; return whether it was.

    Raises UsageError for names of hosts without --print: iobench starts nothing on other hosts.
    """
    named = None if request.hosts == HERE else request.hosts
    if (named is not None) != request.print_lines:
        raise UsageError(
            "--hosts and --print belong together: iobench starts nothing on other hosts",
            remedy="add both to get the commands for torchrun, srun, mpirun, Ray and kubectl",
        )
    if named is None:
        return False
    lines = start_lines(parse_hosts(named), _without(request.command[1:]))
    for engine, line in lines.items():
        show_data(f"# {engine}\n{line}\n")
    return True


def _without(words: Sequence[str]) -> list[str]:
    """The words of the command without --hosts and --print."""
    found, skip = [], False
    for word in words:
        if skip or word == "--print" or word.startswith("--hosts="):
            skip = False
        elif word == "--hosts":
            skip = True
        else:
            found.append(word)
    return found


def launched(request: HostsRequest) -> Launch | None:
    """The host of a job that this process stands for; None if it measures alone."""
    found = None if request.hosts == HERE else find_launch(os.environ)
    if found is not None:
        # torch reads this when it is imported. It tells each wait for the store on stderr, and what
        # the user must know is in the errors.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    return found


def check_one_host(what: str, remedy: str = "start it on one host") -> None:
    """Raise UsageError if a launcher has started ``what``, which measures one host, on several."""
    launch = find_launch(os.environ)
    if launch is not None:
        raise UsageError(
            f"{what} measures one host, but {launch.by} has started it on {launch.hosts}",
            remedy=remedy,
        )


def accelerators_here(request: MeasuringRequest, hosts: int) -> int:
    """The ranks of this host. Raises UsageError for numbers that contradict each other."""
    if request.accelerators_per_host is None:
        return share_of(hosts if request.accelerators == 1 else request.accelerators, hosts)
    return request.accelerators_per_host


def come_together(
    launch: Launch,
    request: HostsRequest,
    make: Callable[[Meeting], T],
    same: Callable[[T], dict[str, str]],
    *,
    accelerators: int = 1,
) -> tuple[Meeting, T, Control | None]:
    """Meet the other hosts, and agree with them on the plan that ``make`` makes.

    ``same``: what of a plan must be equal on all hosts, see ``agree``. ``accelerators``: the ranks
    of this host. The last part of the result is what the controller knows of the others.
    """
    note(f"host {launch.index} of {launch.hosts} waits for the others", quiet=request.quiet)
    meeting = meet(launch, accelerators=accelerators, within_s=request.join_within)
    control = Control(meeting) if meeting.is_controller else None
    return meeting, agree(meeting, lambda: make(meeting), same, control), control


def take_part(meeting: Meeting, plan: Plan, mixed: Mixed | None, request: MeasuringRequest) -> int:
    """Serve the run as a host that is not its controller; return the exit code."""
    from ..runner.hosts.job import serve

    serve(meeting, plan, mixed, request.results, request.command, request.rules)
    tell_end(meeting, request)
    return 0


def on_all_hosts(
    launch: Launch,
    request: HostsRequest,
    make: Callable[[Meeting], T],
    same: Callable[[T], dict[str, str]],
    *,
    lead: Callable[[Control, T], int],
    join: Callable[[Meeting, T], Serving],
    accelerators: int = 1,
) -> int:
    """Do something together with the other hosts of the job; return the exit code of all of them.

    ``make``, ``same`` and ``accelerators`` as in ``come_together``. ``lead`` does it as the
    controller, and returns the exit code; ``join`` makes what serves the controller on another
    host.
    """

    def named_same(plan: T) -> dict[str, str]:
        return {"verb": f"iobench {request.verb}", **same(plan)}

    meeting, plan, control = come_together(
        launch, request, make, named_same, accelerators=accelerators
    )
    if control is not None:
        return led(control, lambda: lead(control, plan), lambda code: code)
    code = join(meeting, plan).serve()
    tell_end(meeting, request)
    return code


def tell_end(meeting: Meeting, request: HostsRequest) -> None:
    """Say on a host that is not the controller where the results are."""
    first = meeting.hosts[0].label
    note(f"the run has ended; its results are on {first}", quiet=request.quiet)


def say_hosts(hosts: Sequence[HostShare]) -> None:
    """A line for each host and its share of the work, the slowest first."""
    for host in sorted(hosts, key=lambda each: -(each.took_s or 0.0)):
        if host.took_s is None:
            say(f"  {host.name}: did not end its share")
            continue
        done, rate = format_bytes(host.done_bytes), host.done_bytes / max(host.took_s, 1e-9)
        say(f"  {host.name}: {done} in {format_duration(host.took_s)}, {format_rate(rate)}")


def hosts_document(hosts: Sequence[HostShare]) -> dict[str, list[dict[str, object]]]:
    """The same for --json, in the hosts' order; nothing where one host did all."""
    return {"hosts": [asdict(host) for host in hosts]} if hosts else {}

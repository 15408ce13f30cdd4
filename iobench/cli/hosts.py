"""Flags of commands on many hosts, and how such a command goes."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..base.errors import UsageError
from ..base.text import filled, flag_values, without_flag
from ..base.units import format_bytes, format_duration, format_rate
from ..runner.hosts.control import Control, check_same, led, say_same
from ..runner.hosts.launch import (
    ADDRESS,
    FIRST_PORT,
    HOSTS,
    INDEX,
    PORT,
    Launch,
    find_launch,
    node_names,
    share_of,
)
from ..runner.hosts.meeting import meet
from ..runner.hosts.serving import Permitted, Same, Served
from ..runner.hosts.sharing import HostShare
from ..settings.any_workload import read_any_workload
from .flags import HostsRequest, LockingRequest, RecordingRequest, TrialsRequest, flag_of, names_of
from .terminal import note, show_data

if TYPE_CHECKING:
    from ..runner.hosts.hosts import Hosts


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
    words = [word for word in request.command[1:] if word != "--print"]
    lines = start_lines(parse_hosts(named), without_flag(words, "--hosts"))
    for engine, line in lines.items():
        show_data(f"# {engine}\n{line}\n")
    return True


def launched(request: HostsRequest) -> Launch | None:
    """The host of a job that this process stands for; None if it measures alone."""
    found = None if request.hosts == HERE else find_launch(os.environ)
    if found is not None:
        # torch reads this when it is imported. It tells each wait for the store on stderr, and what
        # the user must know is in the errors.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    return found


def ranks_here(asked: int, per_host: int | None, what: str, hosts: int) -> int:
    """The ranks of this host, of which so many are ``asked`` for in all, by default one on each.

    Raises UsageError for numbers that contradict each other.
    """
    if per_host is not None:
        return per_host
    return share_of(hosts if asked == 1 else asked, hosts, what)


@dataclass(frozen=True)
class HostPart:
    """The part of this host in a job: whether it is the first one, and its ``own`` ranks.

    ``ranks``: of all hosts. ``own``: None if this host has all of them.
    """

    leads: bool
    ranks: int
    own: range | None = None


def on_all_hosts(
    request: HostsRequest,
    make: Callable[[HostPart], T],
    same: Callable[[T], Same],
    *,
    lead: Callable[[Control | None, T], int],
    serve: Callable[[T], Served],
    accelerators: Callable[[int], int] = lambda hosts: 1,
) -> int:
    """Do something on this host, or on all hosts of a job; return the exit code of all of them.

    ``make``: this host's plan, and ``same`` what of it must be equal on all hosts (``_WHAT``),
    beside the flags.
    ``accelerators``: the ranks of this host, by the number of hosts. ``lead`` does it as the first
    host, whose ``Control`` has the others (None: there are none), and returns the exit code;
    ``serve`` says what another host has for the first one.
    """
    launch = launched(request)
    if launch is None:
        return lead(None, make(HostPart(leads=True, ranks=accelerators(1))))
    here = accelerators(launch.hosts)
    note(f"host {launch.index} of {launch.hosts} waits for the others", quiet=request.quiet)
    meeting = meet(launch, accelerators=here, within_s=request.join_within)
    part = HostPart(meeting.is_controller, meeting.accelerators, meeting.here)

    def named_same(plan: T) -> Same:
        return {"verb": f"iobench {request.verb}", **same(plan), **_flags(request)}

    if meeting.is_controller:
        control = Control(meeting)

        def act() -> int:
            plan = make(part)
            check_same(control, named_same(plan), (peer.answer(Same) for peer in control.peers))
            return lead(control, plan)

        return led(control, act)
    plan = say_same(meeting, lambda: make(part), named_same)
    # Imported late, since what measures imports torch.
    from ..runner.hosts.member import Member

    code = Member(meeting, serve(plan)).serve()
    first = meeting.hosts[0].label
    note(f"the run has ended; its results are on {first}", quiet=request.quiet)
    return code


def hosts_of(control: Control | None) -> Hosts:
    """The hosts that measure."""
    # Imported late, since what measures imports torch.
    if control is None:
        from ..runner.hosts.hosts import Hosts

        return Hosts()
    from ..runner.hosts.job import JobHosts

    return JobHosts(control)


def trials(
    request: TrialsRequest,
    measure: Callable[[Hosts], int],
    *,
    workloads: Sequence[str | None] = (),
    overrides: Sequence[str] = (),
    places: Sequence[str | None] = (),
) -> int:
    """Measure on this host, or on all hosts of a job, what this one plans; return the exit code.

    ``workloads``, ``overrides`` and ``places`` (of data) are those that the command names; the
    first host may ask for no others.
    """

    def permitted(part: HostPart) -> Permitted:
        if part.leads:
            return Permitted()
        return Permitted.by(
            [read_any_workload(name) for name in workloads if name is not None],
            overrides,
            [place for place in places if place is not None],
        )

    return on_all_hosts(
        request,
        permitted,
        lambda _: {},
        lead=lambda control, _: measure(hosts_of(control)),
        serve=lambda permitted: Served(
            permitted=permitted, results=request.results, command=request.command
        ),
    )


def _flags(request: HostsRequest) -> Same:
    """What is asked for by each flag, without what may differ from host to host."""
    own = _OWN if isinstance(request, TrialsRequest) else _OWN | _IN_PLAN
    asked = {name: getattr(request, name) for name in names_of(type(request)) if name not in own}
    return {
        flag_of(name): hashlib.sha256(repr(value).encode()).hexdigest()
        for name, value in asked.items()
    }


_OWN = {
    *names_of(HostsRequest),
    *names_of(RecordingRequest),
    *names_of(LockingRequest),
    *("details", "observer", "progress"),
    *("accelerators_per_host", "ranks_per_host", "workers", "cache_dir", "copy_to"),
}
"""What a host may be asked for in another way than the others."""

_IN_PLAN = {
    *("workload", "dataset", "model", "data", "dir", "url", "to", "origin"),
    *("checkpoint", "checkpoint_to", "overrides"),
}
"""What is in the plan of a host, which is compared by its contents and not by its words."""


def host_lines(hosts: Sequence[HostShare]) -> Iterator[str]:
    """A line for each host and its share of the work, the slowest first."""
    for host in sorted(hosts, key=lambda each: -(each.took_s or 0.0)):
        if host.took_s is None:
            yield f"  {host.name}: did not end its share"
            continue
        done, rate = format_bytes(host.done_bytes), host.done_bytes / max(host.took_s, 1e-9)
        yield f"  {host.name}: {done} in {format_duration(host.took_s)}, {format_rate(rate)}"


def hosts_document(hosts: Sequence[HostShare]) -> dict[str, list[dict[str, object]]]:
    """The same for --json, in the hosts' order; nothing where one host did all."""
    return {"hosts": [asdict(host) for host in hosts]} if hosts else {}


_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:_-]{0,252}[A-Za-z0-9])?")

RENDEZVOUS_PORT = 29_400


def parse_hosts(text: str) -> list[str]:
    """The names of ``h1,h2,...``, or of Slurm's ``h[1-4]``.

    Raises UsageError for none, for too many, for doubles, and for other texts.
    """
    names = node_names(text.strip(" ,"))
    wrong = next((name for name in names if not _NAME.fullmatch(name)), None)
    if wrong is not None:
        raise UsageError(f"'{wrong}' is no name of a host", remedy="use --hosts h1,h2 or h[1-4]")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"--hosts names '{twice}' twice", remedy="name each host once: it makes all its ranks"
        )
    return names


def start_lines(hosts: Sequence[str], words: Sequence[str]) -> dict[str, str]:
    """For each engine what starts ``words`` (after ``iobench``) on each of the hosts.

    It is a line; for kubectl, the objects that it gets. The keys say how each is used.
    """
    count, first = len(hosts), hosts[0]
    command = shlex.join(words)
    torchrun = (
        f"torchrun --nnodes {count} --nproc-per-node 1 --rdzv-backend c10d "
        f"--rdzv-endpoint {first}:{RENDEZVOUS_PORT} -m iobench {command}"
    )
    srun = (
        f"srun --nodes {count} --nodelist {','.join(hosts)} --ntasks {count} --ntasks-per-node 1 "
        f"--exclusive --mem 0 --cpu-bind none --kill-on-bad-exit=1 iobench {command}"
    )
    # A shell that mpirun starts on another host may not find what is in the PATH here.
    program = shlex.join(["env", f"{ADDRESS}={first}", f"MASTER_PORT={FIRST_PORT}", _program()])
    mpirun = (
        f"mpirun -n {count} --host {','.join(hosts)} --map-by ppr:1:node --bind-to none "
        f"{program} {command}"
    )
    mpich = f"mpiexec -n {count} -hosts {','.join(hosts)} -ppn 1 {program} {command}"
    job = {ADDRESS: first, PORT: str(FIRST_PORT)}
    started = ["setpriv", "--pdeathsig", "INT", _program(), *words]
    # One task on each node of a Ray cluster, which runs the same program with the variables of
    # ``launch``. Ctrl-C ends the tasks, but not what they have started: setpriv(1) interrupts it.
    ray = filled(
        Path(__file__).with_name("ray.sh"),
        NAMES=[*hosts],
        WORDS=started,
        INDEX=INDEX,
        HOSTS=HOSTS,
        JOB=job,
    ).rstrip()
    return {
        "torchrun (enter it on each host)": torchrun,
        "srun": srun,
        "mpirun of Open MPI": mpirun,
        "mpiexec of MPICH": mpich,
        "Ray (enter it on a node of the cluster)": ray,
        "kubectl (save this as job.yaml, change what it says, then the first line)": manifest(
            count, words
        ).rstrip(),
    }


def _program() -> str:
    """iobench by its whole path, as it lies on this host."""
    beside = Path(sys.executable).with_name("iobench")
    return str(beside) if beside.exists() else shutil.which("iobench") or "iobench"


# Kubernetes

_RESULTS = "/results"


def manifest(hosts: int, words: Sequence[str]) -> str:
    """A Service and an Indexed Job for ``iobench WORDS`` on so many nodes, as YAML.

    The volume "data" is mounted where the first place of the command lies, and the results are
    written to a volume of their own, unless the command names another place for them.
    """
    words = list(words)
    results = next(iter(flag_values(words, "--results")), None)
    place = next((value for value in _values(words) if value != results), "/data/")
    data = posixpath.dirname(place.rstrip("/"))
    if results is None and words[:1] and words[0] in _RECORDS:
        words += ["--results", _RESULTS]
    return filled(
        Path(__file__).with_name("job.yaml"),
        HOSTS=hosts,
        PORT=FIRST_PORT,
        # A text of JSON is one of YAML as well, whatever is in it.
        WORDS="\n".join(f"            - {json.dumps(word)}" for word in words),
        DATA=json.dumps(data if len(data) > 1 else place.rstrip("/")),
        RESULTS=json.dumps(results if results and results[:1] == "/" else _RESULTS),
    )


_RECORDS = ("run", "train", "checkpoint", "load", "sweep", "ab", "check", "advise")
"""Verbs that write results."""


def _values(words: Sequence[str]) -> list[str]:
    """The paths of the command: places that all pods have to see."""
    values = (word.partition("=")[2] if word[:2] == "--" else word for word in words)
    return [value for value in values if value[:1] == "/" and len(value) > 1]

"""Which of a job's hosts this process stands for, by the variables that its launcher has set.

iobench starts nothing on another host. torchrun, srun, mpirun or Kubernetes start the same command
once on each host, and each tells its processes their number in variables of its own. Sources:
torchrun's page "Environment Variables"; srun(1), "OUTPUT ENVIRONMENT VARIABLES"; mpirun(1) of Open
MPI, "Exported Environment Variables"; Kubernetes, "Indexed Job" (JOB_COMPLETION_INDEX).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from ...base.errors import UsageError

INDEX, HOSTS, ADDRESS, PORT = "IOBENCH_HOST_INDEX", "IOBENCH_HOSTS", "MASTER_ADDR", "MASTER_PORT"
"""Variables for what starts processes without saying so in its own; the last two are torch's."""

FIRST_PORT, PORTS = 29_500, 1_000
"""Where no variable names a port, it is one of these, by the number of the job."""

MAX_HOSTS = 4_096

_RANGES = re.compile(
    r"([^,\[\]]*)\[([0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*)\](.*)"
)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """This process is host ``index`` (0 to ``hosts`` - 1) of a job.

    ``address`` and ``port``: where the store is. ``shared``: the launcher runs it there already.
    ``attempt``: tells this start of the job from others that use the same store. ``leaves``: what
    the launcher has started goes on where the launcher itself is killed.
    """

    by: str
    index: int
    hosts: int
    address: str
    port: int
    shared: bool = False
    attempt: str = ""
    leaves: bool = False


@dataclass(frozen=True)
class _Names:
    """The variables of one launcher: the process's number, how many there are, and on its host."""

    by: str
    index: str
    hosts: str
    local: str
    job: tuple[str, ...] = ()


_LAUNCHERS = (
    _Names("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", ("TORCHELASTIC_RUN_ID",)),
    _Names(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
    _Names("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    _Names("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    _Names("Kubernetes", "JOB_COMPLETION_INDEX", HOSTS, ""),
    _Names("the environment", INDEX, HOSTS, ""),
)


def find_launch(env: Mapping[str, str]) -> Launch | None:
    """The host that this process stands for; None if it was started alone.

    Raises UsageError if the variables contradict each other, or lack what is needed.
    """
    for names in _LAUNCHERS:
        if names.index not in env or names.hosts not in env:
            continue
        hosts = _number(env, names.hosts)
        if not 1 <= hosts <= MAX_HOSTS:
            raise UsageError(f"{names.hosts} is {hosts}: a job has 1 to {MAX_HOSTS} hosts")
        index = _number(env, names.index)
        if index >= hosts:
            raise UsageError(
                f"{names.index} is {index}, but {names.hosts} is {hosts}",
                remedy=f"number the hosts from 0 to {hosts - 1}",
            )
        if hosts == 1:
            return None
        if names.local and _number(env, names.local, default=0) > 0:
            raise UsageError(
                f"{names.by} started more than one process on this host",
                remedy="start one on each host, which makes its ranks itself: "
                f"{_ONE_EACH.get(names.by, 'one process for each host')}",
            )
        return Launch(
            by=names.by,
            index=index,
            hosts=hosts,
            address=_address(env, names),
            port=_port(env, names),
            shared=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            leaves=names.by == "torchrun",  # the daemons of the others see to that
            attempt="/".join(
                env[name] for name in (*names.job, "TORCHELASTIC_RESTART_COUNT") if name in env
            ),
        )
    return None


_ONE_EACH = {
    "torchrun": "torchrun --nproc-per-node 1 ... --accelerators-per-host N",
    "srun": "srun --ntasks-per-node 1 ... --accelerators-per-host N",
    "mpirun": "mpirun --map-by ppr:1:node ... --accelerators-per-host N",
}


def _address(env: Mapping[str, str], names: _Names) -> str:
    if env.get(ADDRESS):
        return env[ADDRESS]
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST")
    if names.by == "srun" and nodes:
        return node_names(nodes)[0]
    raise UsageError(
        f"{ADDRESS} is not set, so the hosts do not know where to meet",
        remedy=f"set it to the name of the host with number 0, e.g. {_SETS.get(names.by, _SET)}",
    )


_SET = f"{ADDRESS}=h1"
_SETS = {
    "mpirun": f"mpirun -x {ADDRESS}=h1",
    "Kubernetes": f"{ADDRESS}=JOB-0.SERVICE in the Job's env",
}


def _port(env: Mapping[str, str], names: _Names) -> int:
    if env.get(PORT):
        port = _number(env, PORT)
        if not 1 <= port <= 65_535:
            raise UsageError(f"{PORT} is {port}, which is no port")
        return port
    job = next((env[name] for name in names.job if env.get(name, "").isdecimal()), "0")
    return FIRST_PORT + int(job) % PORTS


def _number(env: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    text = env.get(name, "")
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise UsageError(f"{name} is '{text}', which is no number")
    return int(text)


def node_names(nodes: str) -> list[str]:
    """The names of Slurm's list of nodes: ``n[03-05,9],login`` -> n03, n04, n05, n9, login.

    Raises UsageError for a text that is no such list, and for more names than ``MAX_HOSTS``.
    Source: scontrol(1), "hostlist".
    """
    parts = re.split(r",(?![^\[]*\])", nodes)
    names = [name for part in parts for name in _expanded(part.strip(), nodes)]
    if not 1 <= len(names) <= MAX_HOSTS:
        raise UsageError(
            f"'{nodes}' names {len(names) or 'no'} hosts", remedy=f"name 1 to {MAX_HOSTS}"
        )
    return names


def _expanded(part: str, nodes: str) -> list[str]:
    """The names of ``part``, which holds ranges like ``[03-05,9]``, or of a name without any."""
    if part and "[" not in part and "]" not in part:
        return [part]
    found = _RANGES.fullmatch(part)
    if found is None:
        raise UsageError(f"'{nodes}' is no list of hosts", remedy="use h1,h2,... or h[1-4]")
    head, ranges, tail = found.groups()
    numbers: list[str] = []
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        numbered = range(int(first), int(last or first) + 1)[: MAX_HOSTS + 1]
        numbers += [f"{number:0{len(first)}}" for number in numbered]
    tails = _expanded(tail, nodes) if tail else [""]
    names = (head + number + rest for number in numbers for rest in tails)
    return list(islice(names, MAX_HOSTS + 1))


def share_of(count: int, hosts: int, what: str = "accelerators") -> int:
    """The ranks of each host. Raises UsageError if they can't be the same on all."""
    each, rest = divmod(count, hosts)
    if rest or not each:
        raise UsageError(
            f"{count} {what} can't be shared by {hosts} hosts",
            remedy=f"use a multiple of the number of hosts, or --{what}-per-host",
        )
    return each

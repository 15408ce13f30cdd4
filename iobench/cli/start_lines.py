"""The lines that ``--print`` shows: they start one iobench process on each host of a job."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ..base.errors import UsageError
from ..runner.hosts.launch import ADDRESS, FIRST_PORT, HOSTS, INDEX, PORT, node_names

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:_-]{0,252}[A-Za-z0-9])?")

RENDEZVOUS_PORT = 29_400

_RAY = """python - <<'END'
import os, subprocess, sys, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

hosts = {hosts!r}
words = {words!r}

@ray.remote(num_cpus=0, max_retries=0)
def start(index):
    host = {{"{INDEX}": str(index), "{HOSTS}": str(len(hosts))}}
    return subprocess.call(words, env=os.environ | host | {job!r})

ray.init(address="auto")
keys = "NodeManagerHostname", "NodeManagerAddress", "NodeName"
nodes = {{node[key]: node["NodeID"] for node in ray.nodes() if node["Alive"] for key in keys}}
places = [On(nodes[name], soft=False) for name in hosts]
started = [start.options(scheduling_strategy=on).remote(n) for n, on in enumerate(places)]
sys.exit(max(abs(code) for code in ray.get(started)))
END"""
"""One task on each node of a Ray cluster, which runs the same program with the variables of
``launch``. Ctrl-C ends the tasks, but not what they have started, which setpriv(1) then interrupts.
"""


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
    ray = _RAY.format(hosts=[*hosts], words=started, INDEX=INDEX, HOSTS=HOSTS, job=job)
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
    results = _value(words, "--results")
    place = next((value for value in _values(words) if value != results), "/data/")
    data = posixpath.dirname(place.rstrip("/"))
    if results is None and words[:1] and words[0] in _RECORDS:
        words += ["--results", _RESULTS]
    filled = {
        "HOSTS": str(hosts),
        "PORT": str(FIRST_PORT),
        # A text of JSON is one of YAML as well, whatever is in it.
        "WORDS": "\n".join(f"            - {json.dumps(word)}" for word in words),
        "DATA": json.dumps(data if len(data) > 1 else place.rstrip("/")),
        "RESULTS": json.dumps(results if results and results[:1] == "/" else _RESULTS),
    }
    before, *parts = Path(__file__).with_name("job.yaml").read_text(encoding="utf-8").split("@")
    for part in parts:
        name = next(each for each in filled if part.startswith(each))
        before += filled[name] + part[len(name) :]
    return before


_RECORDS = ("run", "train", "checkpoint", "load", "sweep", "ab", "check", "advise")
"""Verbs that write results."""


def _value(words: Sequence[str], flag: str) -> str | None:
    for at, word in enumerate(words):
        if word == flag and at + 1 < len(words):
            return words[at + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def _values(words: Sequence[str]) -> list[str]:
    """The paths of the command: places that all pods have to see."""
    values = (word.partition("=")[2] if word[:2] == "--" else word for word in words)
    return [value for value in values if value[:1] == "/" and len(value) > 1]

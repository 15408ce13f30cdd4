"""Hosts for tests: network namespaces of this machine, each with a name, an address, a link to the
others, and, where a test asks for it, files and clocks of its own.

All links end in a namespace that only forwards. So the link of one host, or that of the storage, is
held to a rate (tbf) or delayed without the others noticing. The kernel, its page cache and its
cores are shared.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.processes import PATIENCE_S, Command, Ended, wait_until
from tests.servers.delay import delayed, enter_network, inside_of
from tests.servers.process import missing

_NEWTIME, _NEWNS, _NEWUTS = 0x80, 0x20000, 0x4000000
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_BURST_BYTES = 128 << 10
_BOOT_ID = "/proc/sys/kernel/random/boot_id"

PORT = 29_400
_libc = ctypes.CDLL(None, use_errno=True)
_numbers = itertools.count()


def _checked(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), what)


def _bind(source: Path, target: Path | str) -> None:
    words = (str(source).encode(), str(target).encode(), None, _BIND, None)
    _checked(_libc.mount(*words), f"mount {source} {target}")


def _run(*words: object) -> str:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode:
        raise OSError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


@dataclass
class Host:
    """A namespace. ``bottleneck``: files and folders that stand in others' places on this host.

    ``ahead_s``: how far its monotonic clock is ahead of the machine's, under torchrun.
    """

    name: str  # as the other hosts know it
    address: str
    namespace: str
    device: str  # the end of its link in the namespace that forwards
    bottleneck: dict[Path, Path | str] = field(default_factory=dict)
    ahead_s: int = 0

    def enter(self) -> None:
        """Make the calling process, which must have one thread, a process of this host."""
        enter_network(self.namespace)
        _checked(_libc.unshare(_NEWNS | _NEWUTS), "unshare")
        name = self.name.encode()
        _checked(_libc.sethostname(name, len(name)), "sethostname")
        private = (b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
        _checked(_libc.mount(*private), "mount /")
        for source, target in self.bottleneck.items():
            _bind(source, target)
        if self.ahead_s:  # holds from the next exec on
            _checked(_libc.unshare(_NEWTIME), "unshare the time")
            Path("/proc/self/timens_offsets").write_text(f"monotonic {self.ahead_s} 0\n")

    def processes(self) -> list[int]:
        return [int(pid) for pid in _run("ip", "netns", "pids", self.namespace).split()]


def inside(host: Host) -> AbstractContextManager[None]:
    """What this thread connects, listens or starts in this block is in the host's network."""
    return inside_of(host.namespace)


@dataclass
class Hosts:
    """The hosts of a job, and the one of its storage (``server``)."""

    hosts: list[Host]
    server: Host
    forwards: str
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    launched: list[Launched] = field(default_factory=list)
    ports: Iterator[int] = field(default_factory=lambda: itertools.count(PORT))

    def hold(self, host: Host, bytes_per_s: float | None) -> None:
        """The host receives at most so many bytes/s, or as many as it can again; if it is the
        server, it sends at most so many.
        """
        namespace, device = (
            (host.namespace, "net0") if host is self.server else (self.forwards, host.device)
        )
        tc = ("tc", "-n", namespace, "qdisc")
        if "tbf" in _run(*tc, "show", "dev", device):
            _run(*tc, "del", "dev", device, "root")
        if bytes_per_s is not None:
            rate = ("rate", f"{round(bytes_per_s)}bps", "burst", _BURST_BYTES, "latency", "200ms")
            _run(*tc, "add", "dev", device, "root", "tbf", *rate)

    def torchrun(
        self, *words: object, count: int = 0, of: Mapping[int, Sequence[object]] | None = None
    ) -> Job:
        """Start ``iobench WORDS`` by torchrun, as docs/hosts.md does, on the first ``count`` hosts.

        ``of``: further words of single hosts.
        """
        chosen = self.hosts[: count or len(self.hosts)]
        head = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(chosen))]
        head += ["--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint"]
        head += [f"{chosen[0].name}:{next(self.ports)}", "-m", "iobench"]
        started = []
        number = next(_numbers)
        for index, host in enumerate(chosen):
            more = [str(word) for word in (*words, *(of or {}).get(index, ()))]
            logs = [self.folder / f"job{number}-{host.name}.{end}" for end in ("out", "err")]
            with logs[0].open("wb") as out, logs[1].open("wb") as err:
                process = subprocess.Popen(
                    [*head, *more],
                    stdout=out,
                    stderr=err,
                    preexec_fn=host.enter,
                    env={**os.environ, **self.environment},
                    start_new_session=True,
                )
            started.append(Launched(process, host, *logs))
        self.launched += started
        return Job(started)

    def forked(
        self, *words: object, count: int = 0, of: Mapping[int, Sequence[object]] | None = None
    ) -> list[Command]:
        """As ``torchrun``, without the seconds that it takes to start."""
        chosen = self.hosts[: count or len(self.hosts)]
        port, number = next(self.ports), next(_numbers)

        def become(index: int) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            chosen[index].enter()
            os.environ |= {
                **self.environment,
                "IOBENCH_HOST_INDEX": str(index),
                "IOBENCH_HOSTS": str(len(chosen)),
                "MASTER_ADDR": chosen[0].name,
                "MASTER_PORT": str(port),
            }

        return [
            Command(
                (*words, *(of or {}).get(index, ())),
                self.folder / f"fork{number}-{index}",
                lambda index=index: become(index),
            )
            for index in range(len(chosen))
        ]

    def left(self) -> list[int]:
        """Processes that are on some host."""
        return [pid for host in self.hosts for pid in host.processes()]


@dataclass
class Launched:
    """torchrun on one host."""

    process: subprocess.Popen[bytes]
    host: Host
    out: Path
    err: Path

    def iobench(self) -> list[int]:
        """The process that torchrun has started, if it has."""
        pid = self.process.pid
        try:
            return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []


@dataclass
class Job:
    launched: list[Launched]

    def wait(self) -> list[Ended]:
        processes = [each.process for each in self.launched]
        wait_until(lambda: all(p.poll() is not None for p in processes), "the job does not end")
        return [
            Ended(int(each.process.returncode), each.out.read_text(), each.err.read_text())
            for each in self.launched
        ]


@contextmanager
def hosts(count: int, folder: Path, *, delay_s: float = 0.0) -> Iterator[Hosts]:
    """So many hosts, named h0, h1, ...; no process of them is left at the end.

    ``delay_s``: how long a packet takes from the first host to the others, or back. Skips the test
    where namespaces can't be made.
    """
    if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
        missing("root, ip or tc, without which no host can be made,")
    prefix = f"io{os.getpid()}n{next(_numbers)}"
    with ExitStack() as stack:
        forwards = f"{prefix}f"
        _namespace(forwards, stack)
        _run("ip", "netns", "exec", forwards, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        net = _Net(prefix, forwards, folder, stack)
        made = [net.host(f"h{n}", n, 0.0 if n else delay_s) for n in range(count)]
        server = net.host("server", 100)
        names = folder / "hosts"
        names.write_text("".join(f"{each.address} {each.name}\n" for each in (*made, server)))
        for each in made:
            each.bottleneck[names] = "/etc/hosts"
        found = Hosts(made, server, forwards, folder)
        try:
            yield found
        finally:
            for pid in found.left():
                os.kill(pid, signal.SIGKILL)
            for each in found.launched:
                each.process.wait()
            wait_until(lambda: not found.left(), "processes are left on a host")


def _namespace(name: str, stack: ExitStack) -> None:
    _run("ip", "netns", "add", name)
    stack.callback(_run, "ip", "netns", "del", name)
    _run("ip", "-n", name, "link", "set", "lo", "up")


@dataclass(frozen=True)
class _Net:
    """What the links of all hosts have in common."""

    prefix: str
    forwards: str
    folder: Path
    stack: ExitStack

    def host(self, name: str, number: int, delay_s: float = 0.0) -> Host:
        """A host at 10.91.``number``.2, with its link."""
        namespace, device = f"{self.prefix}{name}", f"to{name}"
        address, gateway = f"10.91.{number}.2", f"10.91.{number}.1"
        _namespace(namespace, self.stack)
        if delay_s:
            self.stack.enter_context(delayed(self.forwards, device, namespace, "net0", delay_s))
        else:
            peer = ("type", "veth", "peer", "name", "net0", "netns", namespace)
            _run("ip", "link", "add", device, "netns", self.forwards, *peer)
        for where, end, own in ((self.forwards, device, gateway), (namespace, "net0", address)):
            _run("ip", "-n", where, "addr", "add", f"{own}/24", "dev", end)
            _run("ip", "-n", where, "link", "set", "dev", end, "up")
        _run("ip", "-n", namespace, "route", "add", "default", "via", gateway)
        machine = self.folder / f"boot-{name}"
        machine.write_text(f"{uuid.uuid4()}\n")
        return Host(name, address, namespace, device, {machine: _BOOT_ID})

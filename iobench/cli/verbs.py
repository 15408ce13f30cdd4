"""The verbs of the command line, in the groups and the order of ``iobench --help``.

The request of a verb is in ``requests/GROUP.py``, and what it does in the module of its name, which
is imported only to do it.
"""

from __future__ import annotations

import importlib

from .requests.flags import TABLE, HostsRequest, Verb, VerbRequest

GROUPS = {
    "start": ("check", "demo", "plan", "size"),
    "data": ("generate", "scan", "verify"),
    "measure": ("run", "train", "checkpoint", "sweep", "ab", "probe"),
    "understand": ("report", "compare", "whatif", "advise", "cost"),
    "keep": ("list", "doctor", "clean"),
}

VERBS = tuple(verb for verbs in GROUPS.values() for verb in verbs)


def verb_of(name: str) -> Verb:
    """The verb of this name; of its group alone, the requests are imported."""
    group = next(group for group, names in GROUPS.items() if name in names)
    importlib.import_module(f"iobench.cli.requests.{group}")
    return TABLE[name]


def do(request: VerbRequest) -> int:
    """Do what is asked, and return the exit code."""
    if isinstance(request, HostsRequest) and (request.print_lines or request.hosts):
        from .hosts import printed_lines

        if printed_lines(request):
            return 0
    worker = importlib.import_module(f"iobench.cli.{request.verb}")
    return int(worker.run(request))

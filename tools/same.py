"""``make same``: does ``iobench report`` say the same as at an earlier commit, in every medium?

Every record of the repository is reported by the code of a commit, from that commit's own records,
and by the code and the records of the working tree. Documents of JSON are compared key by key,
pages by the texts in them, and other documents line by line; what differs is listed by key.

    make same                          # against the last commit
    make same BASE=v1.0 RENAMED=FILE   # FILE: lines of OLD<tab>NEW, names that were changed
"""

from __future__ import annotations

import argparse
import difflib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

RECORDS = ("results/reference/*/*.json", "tests/golden/*/runs/*/run.json")
SWEEPS = ("tests/golden/*/sweep",)
"""Directories of a sweep, whose runs are reported as a sweep, compared and shown as a history."""

FORMATS = (
    "text",
    "json",
    "csv",
    "markdown",
    "html",
    "github",
    "openmetrics",
    "mlperf",
    "trace",
)

ASKED = ("text", "json", "markdown", "html", "github")
"""The formats of the verbs that answer questions about records."""

MOST_SHOWN = 3
"""Changes that are shown of one key, and documents that are named for each of them."""

Documents = Mapping[str, str]
"""The document of each command; the command is named by what the user would type."""


def commands(tree: Path) -> list[list[str]]:
    """Return the commands whose documents are compared, with paths relative to ``tree``."""
    found = sorted(path for pattern in RECORDS for path in tree.glob(pattern))
    records = [str(path.parent.relative_to(tree)) for path in found]
    out = [["report", name] for name in records]
    runs = [name for name in records if name.startswith("tests/golden")]
    out += [["report", *runs[:3]]]
    asked = [["whatif", name, "--storage-bandwidth", "2x"] for name in records]
    asked += [["size", "demo", "--accelerators", "8", "--from", name] for name in records]
    for sweep in sorted(path for pattern in SWEEPS for path in tree.glob(pattern)):
        name = str(sweep.relative_to(tree))
        members = sorted(str(path.parent.relative_to(tree)) for path in sweep.glob("*/run.json"))
        out += [["report", name]]
        asked += [["compare", name, "--over-time", "smallrun"], ["compare", *members[:2]]]
        asked += [["advise", name], ["cost", *members, "--host-price-per-hour", "12"]]
    out = [[*words, "--format", name] for words in out for name in FORMATS]
    out += [[*words, "--details"] for words in out if words[-1] == "text"]
    return out + [[*words, "--format", name] for words in asked for name in ASKED]


def documents(tree: Path) -> Documents:
    """Run the commands with the code of ``tree``, in a process of its own.

    Raises subprocess.CalledProcessError if the code cannot be started.
    """
    with tempfile.NamedTemporaryFile(suffix=".json") as answers:
        # Run as a script, this file has its own code for "sh" and "git", and imports ``tree``'s.
        subprocess.run(
            [sys.executable, __file__, "--documents-of", str(tree), answers.name],
            env={**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "100", "TZ": "UTC"},
            cwd=tree,
            check=True,
        )
        return dict(json.loads(Path(answers.name).read_bytes()))


def write_documents(tree: Path, answers: Path) -> None:
    """Write what the commands print, with the exit code where it is not 0, to ``answers``."""
    from contextlib import redirect_stderr, redirect_stdout

    from iobench.cli.main import main

    out = {}
    for words in commands(tree):
        printed, said = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        with redirect_stdout(printed), redirect_stderr(said):
            try:
                code = main(words)
            except SystemExit as end:
                code = int(end.code or 0)
        printed.flush()
        text = printed.buffer.getvalue().decode()
        out[" ".join(words)] = text + said.getvalue() + (f"exit status {code}\n" if code else "")
    answers.write_text(json.dumps(out), encoding="utf-8")


def checkout(commit: str, to: Path) -> None:
    """Put the files of ``commit`` below ``to``.

    Raises subprocess.CalledProcessError if there is no such commit.
    """
    packed = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(to, filter="data")


def facts(name: str, text: str) -> list[tuple[str, str]]:
    """Return a document as pairs of a key and what it says, by its format."""
    if name.endswith(("json", "mlperf", "trace")):
        try:
            return list(_leaves(json.loads(text)))
        except ValueError:
            pass  # an error that was printed instead of the document
    if name.endswith("html"):
        text = re.sub(r"(?s)<(script|style)\b.*?</\1>", "\n", text)
        text = re.sub(r"<[^>]*>", "\n", text)
    key = f"line of {name.rpartition(' ')[2]}"
    return [(key, line.strip()) for line in text.splitlines() if line.strip()]


def _leaves(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _leaves(each, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each, f"{key}[]")
    else:
        yield key, json.dumps(value)


def differences(
    before: Documents, after: Documents, renamed: Sequence[tuple[str, str]] = ()
) -> dict[tuple[str, str], list[str]]:
    """Return what differs: (key, change) and the commands in whose documents it does.

    ``renamed`` holds names and words that were changed on purpose: (old, new).
    """
    out: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in sorted({*before, *after}):
        if name not in before or name not in after:
            where = "now" if name in after else "before"
            out["documents", f"only {where}"].append(name)
            continue
        text = before[name]
        for old, new in renamed:
            text = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", lambda _, new=new: new, text)  # type: ignore[misc]
        if text == after[name]:
            continue
        then, now = facts(name, text), facts(name, after[name])
        for tag, low, high, first, last in difflib.SequenceMatcher(
            None, then, now, autojunk=False
        ).get_opcodes():
            if tag == "equal":
                continue
            gone, come = then[low:high], now[first:last]
            if len(gone) == len(come) and [k for k, _ in gone] == [k for k, _ in come]:
                for (key, was), (_, now_is) in zip(gone, come, strict=True):
                    out[key, f"{was} -> {now_is}"].append(name)
                continue
            for key, was in gone:
                out[key, f"- {was}"].append(name)
            for key, now_is in come:
                out[key, f"+ {now_is}"].append(name)
    return dict(out)


def read_renamed(file: Path) -> list[tuple[str, str]]:
    """Return the pairs of a table of renamed keys and words.

    Raises ValueError for a line that is no pair.
    """
    pairs = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        old, tab, new = line.partition("\t")
        if not tab:
            raise ValueError(f"{file}:{number}: OLD<tab>NEW is needed, not {line!r}")
        pairs.append((old.strip(), new.strip()))
    return pairs


def main(argv: Sequence[str] | None = None) -> int:
    """Print what differs; return 1 if anything does."""
    parser = argparse.ArgumentParser(prog="make same", description=__doc__.partition("\n")[0])
    parser.add_argument("--base", default="HEAD", help="the commit to compare with (HEAD)")
    parser.add_argument("--renamed", type=Path, help="a file with lines of OLD<tab>NEW")
    parser.add_argument("--all", action="store_true", help="show every change of each key")
    parser.add_argument("--documents-of", nargs=2, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.documents_of:
        write_documents(*args.documents_of)
        return 0
    renamed = read_renamed(args.renamed) if args.renamed else []
    with tempfile.TemporaryDirectory(prefix="iobench-same-") as folder:
        checkout(args.base, Path(folder))
        before = documents(Path(folder))
    after = documents(ROOT)
    found = differences(before, after, renamed)
    by_key: dict[str, list[tuple[str, list[str]]]] = defaultdict(list)
    for (key, change), names in sorted(found.items()):
        by_key[key].append((change, names))
    for key, changes in by_key.items():
        print(f"{key}: {len(changes)}")
        for change, names in changes if args.all else changes[:MOST_SHOWN]:
            print(f"    {change}\n        in {len(names)}: {'; '.join(names[:MOST_SHOWN])}")
    print(f"{len(after)} documents compared with {args.base}: {len(found) or 'no'} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""``make gallery``: measure small runs of each kind, and keep their pages as the gallery.

The runs are real, on this machine: up to 504 MiB of JPEGs, some of them behind a simulated link.
Their directories stay in a working directory, from which ``--pages`` makes the pages again. The
repository keeps the record and the page of each (results/reference), and pictures of some
(docs/images), which a browser draws.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from iobench.report.glance import quoted

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "results" / "reference"
IMAGES = ROOT / "docs" / "images"
PAGE = ROOT / "docs" / "gallery.md"
BEGIN, END = "<!-- pages -->", "<!-- end of pages -->"

MAX_BYTES = 3 << 20
"""Of all pages and records that are kept."""

MAX_PICTURE = 200_000
WIDTH, HEIGHT, COLORS = 1440, 1150, 128

SLOW = "throttled+files?latency=20ms"
"""Files behind a link on which each read takes 20 ms."""

DATA = (
    "generate demo --to data --samples 640",
    "generate demo --to more --samples 4800",  # a search needs many steps
    "generate demo --to files --samples 640 --set format=files",
)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A page of the gallery: what it shows, and the command that measures it, if one is needed.

    ``report`` prints the page; ``{}`` in it is the directory of the run. ``record`` is the file
    that is kept with it.
    """

    name: str
    what: str
    measure: str = ""
    report: str = "report {}"
    record: str = "run.json"


GALLERY = (
    Shown(
        name="run",
        what="A run on a local disk, which feeds one accelerator of the demo at a quarter of its "
        "speed; images are not decoded.",
        measure="run demo --data data --repeat 6 --calibration 2s --ablations 20s "
        "--set reader.decode=false --set accelerator.step_time=100ms",
    ),
    Shown(
        name="storage-bound",
        what="The same images as single files, behind a link on which each read takes 20 ms. The "
        "advice was tried, in turns with the settings of the run.",
        measure=f"run demo --data {quoted(SLOW)} --repeat 4 --calibration 2s --ablations 40s "
        "--confirm --set reader.decode=false",
    ),
    Shown(
        name="prep-bound",
        what="The images on a local disk, decoded by two workers: the cores are the limit, not the "
        "disk.",
        measure="run demo --data data --repeat 4 --calibration 2s --ablations 40s --confirm",
    ),
    Shown(
        name="saves",
        what="A training that saves its state every 10 steps, and waits until it is durable.",
        measure="run demo --data data --repeat 4 --calibration 2s --ablations 90s "
        "--set reader.decode=false --set accelerator.step_time=100ms --set epochs=4 "
        "--checkpoint llama3-8b --checkpoint-scale 1/300 --checkpoint-to saved-in-run "
        "--checkpoint-every 10 --checkpoint-writer torch",
    ),
    Shown(
        name="find-max",
        what="How many accelerators a link of 100 MB/s feeds.",
        measure="run demo --data 'throttled+more?bandwidth=100MB' --find-max --repeat 2 "
        "--calibration 1s --no-ablations --set accelerator.step_time=30ms --set batch_size=8 "
        "--set reader.decode=false",
    ),
    Shown(
        name="checkpoint",
        what="What it costs a training on 1,024 accelerators to save its state.",
        measure="checkpoint llama3-8b --to saved --scale 1/500 --repeat 6 --accelerators 1024 "
        "--accelerator-price-per-hour 2.5 --mtbf 3h",
    ),
    Shown(
        name="serve",
        what="Whether requests have their answer within 15 ms where each read takes 5 ms.",
        measure="serve resnet50-server --data 'throttled+files?latency=5ms' --set dataset=demo "
        "--rate 200 --duration 10s --repeat 3",
    ),
    Shown(
        name="kv",
        what="Whether a KV cache behind a link of 400 MB/s is worth it.",
        measure="kv kv-chat-llama3-8b --to 'throttled+cached?bandwidth=400MB' --set layers=2 "
        "--set quantile=0.9 --budget 3m",
    ),
    Shown(
        name="sweep",
        what="Workers and reads in flight, behind a link on which each read takes 20 ms.",
        measure="sweep demo --to 'throttled+swept?latency=20ms' --samples 320 --sweep "
        "reader.concurrency=1,2,4,8 --sweep loader.workers=1,2 --repeat 4 --calibration 0s "
        "--set reader.decode=false --set dataset.format=files",
        record="sweep.json",
    ),
    Shown(
        name="ab",
        what="Two settings in turns: 4 and 16 reads in flight for each worker.",
        measure=f"ab {quoted(SLOW)} --workload demo --set-b reader.concurrency=16 --max-rounds 12 "
        "--budget 90s --set reader.decode=false --set epochs=1",
        record="ab.json",
    ),
    Shown(
        name="compare",
        what="Runs of the sweep, by the number of reads in flight.",
        report="compare {sweep} --by reader.concurrency",
    ),
    Shown(
        name="advise",
        what="What the sweep advises.",
        report="advise {sweep}",
    ),
    Shown(
        name="cost",
        what="What samples cost on a host of one type, on demand and as a spot instance.",
        report="cost {run} --instance g5.xlarge --epochs 90",
    ),
    Shown(
        name="size",
        what="What storage to buy for 64 accelerators; nothing is measured.",
        report="size unet3d-h100 --accelerators 64 --hosts 8",
    ),
    Shown(
        name="history",
        what="All runs of the sweep over time.",
        report="compare {sweep} --over-time demo",
    ),
    Shown(
        name="probe",
        what="The storage's curve alone.",
        measure="",
        report="probe data --budget 5s",
    ),
)

PICTURES = ("storage-bound", "sweep")
"""Pages of which there is a picture."""


def iobench(words: str, work: Path, *more: str) -> None:
    """Run a command in the working directory. Exits with its error if it fails."""
    command = [sys.executable, "-m", "iobench", *shlex.split(words), *more]
    done = subprocess.run(
        command, cwd=work, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"}
    )
    if done.returncode not in (0, 4):  # 4: advice that was not confirmed is a result
        sys.exit(f"iobench {words}: {done.stderr.strip()}")


def measure(work: Path, names: Sequence[str]) -> None:
    """Measure what the working directory does not have yet."""
    for words in DATA:
        iobench(words, work)
    for each in GALLERY:
        place = work / each.name
        if each.measure and each.name in names and not place.exists():
            print(f"measuring {each.name}", file=sys.stderr)
            iobench(each.measure, work, "--results", f"{each.name}.part")
            (work / f"{each.name}.part").rename(place)


def directory_of(work: Path, name: str) -> str:
    """The directory that a command has made, relative to the working directory."""
    if not (work / name).is_dir():
        sys.exit(f"no run '{name}' in {work}, and every page is made: measure it, too")
    return str(next((work / name).iterdir()).relative_to(work))


def pages(work: Path) -> dict[str, str]:
    """Write pages and records, and return the command of each. Exits if they are too large."""
    places = {each.name: directory_of(work, each.name) for each in GALLERY if each.measure}
    shutil.rmtree(KEPT, ignore_errors=True)
    commands = {}
    for each in GALLERY:
        own = places.get(each.name, "")
        words = each.report.format(own, **places)
        kept = KEPT / each.name
        kept.mkdir(parents=True)
        iobench(f"{words} --html -o report.html", work)
        shutil.move(work / "report.html", kept)
        if own:
            shutil.copy(work / own / each.record, kept)
        commands[each.name] = f"iobench {each.measure or words}"
    size = sum(file.stat().st_size for file in KEPT.rglob("*") if file.is_file())
    if size > MAX_BYTES:
        sys.exit(f"the gallery has {size:,} bytes, but {MAX_BYTES:,} is the limit")
    return commands


def describe(commands: Mapping[str, str]) -> None:
    """Write docs/gallery.md: what each page shows, the command, links and pictures."""
    lines = []
    for each in GALLERY:
        files = sorted(file.name for file in (KEPT / each.name).iterdir())
        links = ", ".join(f"[{file}](../results/reference/{each.name}/{file})" for file in files)
        lines += [f"## {each.name}", "", *textwrap.wrap(each.what, 98), "", links, ""]
        lines += ["```", commands[each.name], "```", ""]
        if each.name in PICTURES:
            lines += [f"![The page of {each.name}](images/{each.name}.png)", ""]
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    told = "\n".join(lines)
    PAGE.write_text(f"{head}{BEGIN}\n\n{told}\n{END}{tail}", encoding="utf-8")


def pictures() -> None:
    """The top of some pages, as Chromium draws them. Exits if a picture is too large."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        for name in PICTURES:
            tab.goto((KEPT / name / "report.html").as_uri())
            file = IMAGES / f"{name}.png"
            tab.screenshot(path=file)
            Image.open(file).convert("RGB").quantize(COLORS).save(file, optimize=True)
            if file.stat().st_size > MAX_PICTURE:
                sys.exit(f"{file} has more than {MAX_PICTURE:,} bytes")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, help="directory of the runs (default: a new one)")
    parser.add_argument("--only", nargs="*", default=[each.name for each in GALLERY])
    parser.add_argument("--pages", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if args.work is not None:
        args.work.mkdir(exist_ok=True)
        make(args.work, args)
        return
    with tempfile.TemporaryDirectory(prefix="gallery-") as folder:
        make(Path(folder), args)


def make(work: Path, args: argparse.Namespace) -> None:
    if not args.pages:
        measure(work, args.only)
    commands = pages(work)
    pictures()
    describe(commands)


if __name__ == "__main__":
    main()

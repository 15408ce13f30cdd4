"""A manifest is data: what it says of its samples' place leads to no request and no other file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iobench import make_loader
from iobench.base.errors import UsageError
from iobench.cli.main import main
from iobench.data.dataset import find_dataset
from iobench.record.manifest import Manifest
from iobench.runner.plan import make_plan
from iobench.runner.plan_figures import describe_plan
from iobench.settings.workload import load_workload
from tests.pairs import one_of
from tests.security.hostile import planted
from tests.servers.listener import Listener, listener

__all__ = ["listener"]

CANARIES = {
    "AWS_ACCESS_KEY_ID": "CANARYKEYID",
    "AWS_SECRET_ACCESS_KEY": "canarysecret",
    "AWS_SESSION_TOKEN": "canarytoken",
    "AWS_REGION": "us-east-1",
}

ELSEWHERE = (
    "s3://victim/p?endpoint={url}&client=obstore&retries=0",
    "s3://victim/p?endpoint={url}&client=boto3&retries=0",
    "throttled+s3://victim/p?endpoint={url}&retries=0",
    "{url}/x",
    "nfs://127.0.0.1/x?nfsport={port}&mountport={port}&timeout=1s",
    "sftp://127.0.0.1:{port}/x",
    "file://{outside}",
    "local://{outside}",
    "{outside}",
    "throttled+{outside}",
    "{inside}/../outside",
    "{inside}/link",
    "outside",
    ".",
    "\x1b]0;title\x07{url}",
    "{url}/" + "x" * 5000,
)


@pytest.fixture
def outside(make_dataset: Any, tmp_path: Path) -> tuple[Manifest, Path]:
    """Somebody's files, at a place of their own."""
    manifest, root = make_dataset()
    shutil.copytree(root / "data", tmp_path / "outside" / "data")
    return manifest, tmp_path / "outside"


@pytest.fixture(autouse=True)
def canaries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    return


def scanned(make_dataset: Any, tmp_path: Path, origin: str) -> Path:
    """A manifest that says that its samples lie at ``origin``."""
    manifest, root = make_dataset()
    folder = planted(root, tmp_path / "m", header={"origin": origin}, names=manifest.keys())
    shutil.rmtree(folder / "data")
    return folder


@pytest.mark.parametrize("place", one_of(3, ELSEWHERE))
def test_no_verb_follows_it(
    place: str,
    make_dataset: Any,
    outside: tuple[Manifest, Path],
    listener: Listener,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    origin = place.format(
        url=listener.url, port=listener.port, outside=outside[1], inside=tmp_path / "m"
    )
    folder = scanned(make_dataset, tmp_path, origin)
    (folder / "link").symlink_to(outside[1])
    for words in (
        ("verify", folder),
        ("verify", f"throttled+{folder}?latency=1us"),
        ("plan", "demo", "--data", folder),
        ("plan", "demo", "--data", folder, "--probe"),
        ("run", "demo", "--data", folder, "--results", tmp_path / "results"),
    ):
        assert main([str(word) for word in words]) == 2, words
        shown = capsys.readouterr()
        assert shown.out == ""
        assert len(shown.err.splitlines()) == 1
        assert "--origin" in shown.err
        assert len(shown.err) < 600
        assert "\x1b" not in shown.err
        assert "canary" not in shown.err.lower()
    with pytest.raises(UsageError):
        make_loader(folder, batch_size=4)
    assert listener.requests == []
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("below", ["", "/inner"])
def test_its_own_directory_is_followed(below: str, make_dataset: Any, tmp_path: Path) -> None:
    """A folder that was copied as a whole, samples included, needs no word of the user's."""
    _, root = make_dataset()
    folder = scanned(make_dataset, tmp_path, f"{tmp_path}/m{below}")
    shutil.copytree(root / "data", Path(f"{folder}{below}") / "data")
    assert main(["verify", str(folder)]) == 0
    assert find_dataset(f"throttled+{folder}?latency=1us")[1] == (
        f"throttled+{folder}{below}?latency=1us"
    )


def test_where_the_user_says_is_read_and_told(
    make_dataset: Any,
    outside: tuple[Manifest, Path],
    listener: Listener,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = scanned(make_dataset, tmp_path, f"s3://victim/p?endpoint={listener.url}")
    place = str(outside[1])
    assert main(["verify", str(folder), "--origin", place]) == 0
    assert place in capsys.readouterr().out
    assert main(["verify", f"faulty+{folder}?fail_at=3", "--origin", place]) == 5
    capsys.readouterr()
    quick = ("--repeat", "1", "--calibration", "0", "--set", "loader.workers=0")
    words = ("run", "demo", "--data", folder, "--origin", place, "--results", tmp_path, *quick)
    assert main([str(word) for word in words]) == 0
    assert f"{place}" in capsys.readouterr().out
    loader = make_loader(folder, batch_size=60, origin=place, loader={"workers": 0})
    assert sum(len(batch) for batch in loader) == 60
    workload = load_workload("demo")
    plan = make_plan(workload, str(folder), origin=place, accelerators=1, repetitions=1, seed=0)
    assert plan.storage.url == place
    figures = describe_plan(workload, str(folder), origin=place, accelerators=1, repetitions=1)
    assert figures.generated
    assert listener.requests == []


def test_a_place_goes_with_scanned_data_alone(
    make_dataset: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, root = make_dataset()
    for words in (
        ("verify", root),
        ("plan", "demo", "--data", root),
        ("run", "demo", "--data", root, "--results", tmp_path / "results"),
    ):
        assert main([*map(str, words), "--origin", str(tmp_path)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["plan", "demo", "--origin", str(tmp_path)]) == 2
    assert not (tmp_path / "results").exists()


def test_options_of_the_workload_are_for_the_data(
    make_dataset: Any, listener: Listener, tmp_path: Path
) -> None:
    """A manifest in a directory has no endpoint; the data behind it has the user's."""
    folder = scanned(make_dataset, tmp_path, "s3://other/place")
    workload = load_workload("demo", [f"storage.endpoint={listener.url}", "storage.retries=0"])
    options = workload.storage_options()
    manifest, place = find_dataset(str(folder), options, origin="s3://mine/data")
    assert (manifest.sample_count, place) == (60, "s3://mine/data")
    assert listener.requests == []


def test_a_loop_of_links_is_no_place(make_dataset: Any, tmp_path: Path) -> None:
    folder = scanned(make_dataset, tmp_path, f"{tmp_path}/m/loop")
    os.symlink(folder / "loop", folder / "loop")
    assert main(["verify", str(folder)]) in (1, 2, 5)

"""Credentials in a URL are refused and not shown, whatever the scheme and the verb."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from iobench.base.errors import StorageError, UsageError
from iobench.base.safety import remove_exactly
from iobench.cli.main import main
from iobench.storage import is_local, open_storage, rewrapped, unwrapped
from iobench.storage.base import address_of
from iobench.storage.s3.storage import S3Storage
from tests.pairs import one_of

CANARY = "canary9d2c41e7"

WITH_SECRETS = [
    "http://{}@127.0.0.1:9/x",
    "https://{}@127.0.0.1:9/x",
    "https://me:{}@127.0.0.1:9/x",
    "https://me:pa/{}@127.0.0.1:9/x",
    "throttled+https://{}@127.0.0.1:9/x?latency=1ms",
    "s3://{}@bucket/x",
    "gs://{}@bucket/x",
    "sftp://{}@127.0.0.1/x",
    "nfs://{}@127.0.0.1/x",
    "file://{}@host/x",
    "memory://{}@x/y",
    "abfs://container:{}@account/x",
    "https://127.0.0.1:9/x;sig={}",
    "https://127.0.0.1:9/x;SIG={}",
    "https://127.0.0.1:9/x%3Bsig%3D{}",
    "https://127.0.0.1:9/x?sig={}",
    "https://127.0.0.1:9/x?sv=2024-01-01&se=2030&sr=c&sig={}",
    "az://container/x?sv=2024-01-01&sig={}",
    "https://127.0.0.1:9/x?X-Amz-Signature={}",
    "https://127.0.0.1:9/x?X-Amz-Security-Token={}",
    "https://127.0.0.1:9/x?X-Goog-Signature={}",
    "https://127.0.0.1:9/x?Signature={}&AWSAccessKeyId=x",
    "https://127.0.0.1:9/x?access_token={}",
    "https://127.0.0.1:9/x#token={}",
    "s3://bucket/x?X-Amz-Credential={}",
    "https://[{}/x",
]


@pytest.mark.parametrize("url", one_of(3, WITH_SECRETS))
def test_every_verb_refuses_it_unseen(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    place = url.format(CANARY)
    for words in (
        ("verify", place),
        ("verify", "x", "--origin", place),
        ("plan", "demo", "--data", place),
        ("run", "demo", "--data", place),
        ("generate", "demo", "--to", place),
        ("scan", place, "--save", "x.yaml"),
        ("clean", place),
        ("checkpoint", "llama3-8b", "--to", place, "--scale", "1/1000000"),
        ("sweep", "demo", "--to", place, "--sweep", "loader.workers=1,2"),
    ):
        code = main(list(words))
        shown = capsys.readouterr()
        assert code in (1, 2), words
        assert CANARY not in shown.out + shown.err, words
        assert len(shown.err.splitlines()) == 1, words
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(
    "url",
    [
        "memory://bucket/a@b",
        "memory://bucket/sig-1/x",
        "/data/token=5/x@y;sig=1",
        "throttled+/data/x@y?latency=1ms",
        "s3://bucket/year=2024/sigma=3?endpoint=http://127.0.0.1:9",
        "nfs://127.0.0.1:2049/export/x?version=3",
    ],
)
def test_what_holds_none_passes(url: str) -> None:
    open_storage(url)


def test_a_wrong_option_is_named_unless_it_may_be_the_end_of_a_password() -> None:
    for key in ("wrong", "Wrong", "mount-port"):
        with pytest.raises(UsageError, match=f"nfs storage has no option '{key}'"):
            open_storage(f"nfs://127.0.0.1/x?version=3&{key}=0")
    with pytest.raises(UsageError) as hidden:
        open_storage("nfs://u:12?Word=1&x@host/y")
    assert "Word" not in str(hidden.value)


def test_a_container_before_its_account_is_no_user() -> None:
    """Azure's own form. Its package may be missing, which is another error."""
    try:
        open_storage("abfs://container@account/x")
    except UsageError as error:
        text = str(error)
    else:
        return
    assert "adlfs" in text


def test_wrappers_come_off_and_on() -> None:
    inner = "s3://bucket/x?endpoint=http://h:1"
    url = "throttled+faulty+s3://bucket/x?endpoint=http://h:1&fail_at=3&bandwidth=1MB"
    assert unwrapped(url) == inner
    again = rewrapped(url, "s3://other/y?endpoint=http://h:2")
    assert unwrapped(again) == "s3://other/y?endpoint=http://h:2"
    opened = open_storage(again)
    assert opened.url == "throttled+faulty+s3://other/y"
    assert address_of(opened) == "s3://other/y?endpoint=http://h:2"  # what a command is to name
    assert rewrapped("/data", inner) == inner
    for local in ("/data", "data", "file:///data", "throttled+/data?latency=1ms"):
        assert is_local(local)
    for other in (inner, url, "memory://x", "local:///data"):
        assert not is_local(other)


def test_a_value_that_a_plug_in_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, *, direct: bool, options: object) -> None:
        raise ValueError("wait=abc is no number")

    monkeypatch.setattr(S3Storage, "open", refuse)
    with pytest.raises(UsageError, match="wait=abc is no number"):
        open_storage("throttled+s3://bucket/x?latency=1ms")


# Races


@pytest.mark.parametrize("moment", ["the root is listed", "the folder is listed", "a file is gone"])
def test_an_exchange_while_files_are_removed(moment: str, tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "data", outside):
        folder.mkdir(parents=True)
        for name in ("a", "b", "c"):
            (folder / name).write_text(name)
    asked: list[str] = []

    def exchange() -> None:
        if not (root / "data").is_symlink():
            (root / "data").rename(tmp_path / "moved")
            (root / "data").symlink_to(outside)

    def owned(name: str) -> bool:
        asked.append(name)
        if moment == "the folder is listed" or len(asked) > 1:
            exchange()
        return True

    def folders(name: str) -> bool:
        if moment == "the root is listed" and name == "data":
            exchange()
        return True

    with suppress(StorageError):  # what is to be removed in the end is a folder no more
        remove_exactly(root, owned, last=(), folders=folders)
    assert (root / "data").is_symlink()
    assert sorted(path.name for path in outside.iterdir()) == ["a", "b", "c"]

"""S3 against real servers: the contract of storages with every client, and what S3 does in its own
way.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from iobench.base.errors import MissingObjectError, StorageError, TargetRefusedError
from iobench.settings.workload import LocalCacheSpec
from iobench.storage import open_storage
from iobench.storage.base import Storage
from iobench.storage.local_cache import local_cache
from iobench.testing.storage import StorageContract, content, put, read
from tests.servers.s3 import BUCKET, S3Server, rclone_s3, rclone_server, s3_environment, swift_s3

__all__ = ["rclone_s3", "s3_environment", "swift_s3"]

pytestmark = pytest.mark.usefixtures("s3_environment")

PAIRS = [
    ("rclone", "obstore"),
    ("rclone", "s3fs"),
    ("rclone", "boto3"),
    ("swift", "obstore"),
    ("swift", "boto3"),
]


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[S3Server, str]:
    server, client = request.param
    return request.getfixturevalue(f"{server}_s3"), client


@pytest.fixture
def s3(pair: tuple[S3Server, str]) -> Iterator[Any]:
    server, client = pair
    storage = open_storage(server.url(client=client, part_size="5MiB"))
    yield storage
    for entry in list(storage.list()):
        storage.delete(entry.key)
    storage.close()


PART = 5 << 20


def test_a_local_cache_serves_what_was_read_once(s3: Any, tmp_path: Path) -> None:
    """Objects of any size, whole and in parts; the second time without the server."""
    objects = {f"folder/{size}": content(size) for size in (1, 4096, 100_001, 9 << 20)}
    for key, data in objects.items():
        put(s3, key, data)
    spec = LocalCacheSpec(directory=str(tmp_path), size=1 << 30)
    sizes = {key: len(data) for key, data in objects.items()}
    with local_cache(spec, s3, sizes, direct=True) as cache:
        for hits in (0, len(objects)):
            for key, data in objects.items():
                assert read(cache, key, 0, len(data)) == data
            assert cache.counted().hits == hits
            for key in list(objects) if hits else ():
                s3.delete(key)
        for key, data in objects.items():
            third = len(data) // 3
            assert read(cache, key, third, len(data) - third) == data[third:]


WRITTEN = [
    *((size, True, hinted) for size in (0, 4097, PART + 1) for hinted in (True, False)),
    *((size, True, True) for size in (1, PART - 1)),
    *((size, True, False) for size in (PART, 2 * PART + 5)),
]
"""Sizes around a part and whether they are told before; durable or not is one thing on S3."""


class TestS3(StorageContract):
    """The whole contract, once for each client."""

    @pytest.fixture(params=[pair for pair in PAIRS if pair[0] == "rclone"], ids="-".join)
    def pair(self, request: pytest.FixtureRequest) -> tuple[S3Server, str]:
        return request.getfixturevalue("rclone_s3"), request.param[1]

    @pytest.fixture
    def storage(self, s3: Storage) -> Storage:
        return s3

    @pytest.mark.parametrize(("size", "durable", "hinted"), WRITTEN)
    def test_what_is_written_is_read(
        self, storage: Storage, size: int, durable: bool, hinted: bool
    ) -> None:
        super().test_what_is_written_is_read(storage, size, durable, hinted)


SHORT: dict[str, Callable[[Storage], None]] = {
    **{
        f"written-{size}": partial(
            StorageContract().test_what_is_written_is_read, size=size, durable=True, hinted=hinted
        )
        for size, hinted in ((0, False), (4097, True), (PART + 1, False))
    },
    "overwritten": StorageContract().test_nothing_is_overwritten,
    "failed": partial(StorageContract().test_what_fails_leaves_no_trace, hint=0),
    "missing": StorageContract().test_missing_keys_are_one_clear_line,
    "deleted": StorageContract().test_deleted_is_gone,
    "replaced": StorageContract().test_a_small_object_can_be_replaced,
    "only-new": StorageContract().test_a_small_object_can_be_made_only_where_there_is_none,
}
"""What a second server is asked: the parts of the contract that depend on the server."""


@pytest.mark.parametrize("client", ["obstore", "boto3"])
@pytest.mark.parametrize("part", SHORT)
def test_another_server_keeps_the_contract(swift_s3: S3Server, client: str, part: str) -> None:
    storage = open_storage(swift_s3.url(client=client, part_size="5MiB"))
    SHORT[part](storage)
    storage.close()


def unfinished(server: S3Server, storage: Any) -> list[str]:
    """What the server knows of uploads below the storage's root, by other eyes."""
    client = server.client()
    try:
        found = client.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{storage.prefix}/").get(
            "Uploads", []
        )
    except client.exceptions.ClientError as error:
        if (
            error.response["Error"]["Code"] != "NoSuchUpload"
        ):  # rclone's way to say that there was never one
            raise
        found = []
    client.close()
    return sorted(upload["Key"] for upload in found)


KEYS = [
    "a b",
    "a+b",
    "a%20b",
    "a%b",
    "~x",
    "#1",
    "q&a=1",
    "Größe/ñ.bin",
    "(1),[2];'3'",
    "a:b@c",
    "a.b..c",
    "-",
    "日本",
]


def test_keys_of_every_kind(s3: Any) -> None:
    for key in KEYS:
        put(s3, key, key.encode())
    assert sorted(entry.key for entry in s3.list()) == sorted(KEYS)
    for key in KEYS:
        assert read(s3, key, 0, 100) == key.encode()
        assert s3.size(key) == len(key.encode())


@pytest.fixture(scope="module")
def full_bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server with 2,345 objects below ``many``."""
    folder = tmp_path_factory.mktemp("full") / "server"
    many = folder / "data" / BUCKET / "many"
    many.mkdir(parents=True)
    for number in range(2345):
        (many / f"{number:05d}").write_bytes(b"x" * (number % 7))
    with rclone_server(folder) as server:
        yield server


@pytest.mark.parametrize("client", ["obstore", "s3fs", "boto3"])
def test_more_objects_than_one_answer_holds(full_bucket: S3Server, client: str) -> None:
    storage = open_storage(full_bucket.url("many", client=client))
    assert [(entry.key, entry.size) for entry in storage.list()] == [
        (f"{number:05d}", number % 7) for number in range(2345)
    ]
    storage.close()


def test_what_the_server_does_with_conditions_is_said(pair: tuple[S3Server, str], s3: Any) -> None:
    assert s3.facts()["conditional_create"] == "not checked"
    put(s3, "x")
    expected = {"rclone": "ignored by the server", "swift": "enforced"}[pair[0].name]
    assert s3.facts()["conditional_create"] == expected
    assert read(s3, "x", 0, 9) == b"data"
    s3.close()
    assert s3.facts()["conditional_create"] == expected


@pytest.mark.parametrize("size", [10, PART + 10])
def test_a_writer_that_comes_second_is_refused(
    pair: tuple[S3Server, str], s3: Any, size: int
) -> None:
    """Where the server looks at the condition, or where the other one was done before the last
    look.
    """
    other: Any = open_storage(pair[0].url(s3.prefix, client=pair[1], part_size=PART))
    put(s3, "probe")
    with pytest.raises(StorageError, match="exists"), s3.create("x") as sink:  # noqa: PT012
        sink.write(bytes(size))
        put(other, "x", b"first")
    assert read(s3, "x", 0, 100) == b"first"
    assert unfinished(pair[0], s3) == []
    other.close()


def test_large_objects_go_up_in_parts(pair: tuple[S3Server, str], s3: Any) -> None:
    put(s3, "x", content(3 * PART + 7))
    put(s3, "y", content(PART))
    if pair[0].name == "swift":  # rclone's ETags are hashes of the whole
        versions = s3.versions()
        assert versions["x"].endswith("-4")
        assert "-" not in versions["y"]
    assert read(s3, "x", PART - 5, PART) == content(3 * PART + 7)[PART - 5 : 2 * PART - 5]
    assert unfinished(pair[0], s3) == []


def test_an_upload_that_fails_is_aborted(pair: tuple[S3Server, str], s3: Any) -> None:
    seen = []
    with pytest.raises(ZeroDivisionError), s3.create("x") as sink:  # noqa: PT012
        sink.write(bytes(2 * PART + 1))
        seen = unfinished(pair[0], s3)
        raise ZeroDivisionError
    assert seen == [f"{s3.prefix}/x"], "there was something to abort"
    assert unfinished(pair[0], s3) == []
    assert list(s3.list()) == []


def test_memory_holds_a_few_parts_of_a_large_object(rclone_s3: S3Server) -> None:
    storage = open_storage(rclone_s3.url(part_size=PART))
    put(storage, "warm", bytes(2 * PART))
    piece = bytes(1 << 20)
    tracemalloc.start()
    with storage.create("x") as sink:
        for _ in range(100):
            sink.write(piece)
        peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Four parts travel while one is filled; other threads of this process may hold memory, too.
    assert peak < 10 * PART
    storage.close()


def test_only_own_unfinished_uploads_are_discarded(pair: tuple[S3Server, str], s3: Any) -> None:
    server, _ = pair
    client = server.client()
    for key in (
        f"{s3.prefix}/data/mine",
        f"{s3.prefix}/data/other",
        f"{s3.prefix}-neighbour/data/mine",
    ):
        upload = client.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
        client.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=1, Body=b"half")
    assert s3.discard_unfinished(lambda key: key == "data/mine", dry_run=True) == ("data/mine",)
    assert unfinished(server, s3) == [f"{s3.prefix}/data/mine", f"{s3.prefix}/data/other"]
    assert s3.discard_unfinished(lambda key: key == "data/mine") == ("data/mine",)
    assert unfinished(server, s3) == [f"{s3.prefix}/data/other"]
    assert s3.discard_unfinished(lambda key: key == "data/mine") == ()
    neighbour = client.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{s3.prefix}-neighbour/")[
        "Uploads"
    ]
    assert [upload["Key"] for upload in neighbour] == [f"{s3.prefix}-neighbour/data/mine"]
    for left in client.list_multipart_uploads(Bucket=BUCKET, Prefix=s3.prefix)["Uploads"]:
        client.abort_multipart_upload(Bucket=BUCKET, Key=left["Key"], UploadId=left["UploadId"])
    client.close()


def test_a_bucket_root_is_no_target(rclone_s3: S3Server) -> None:
    root: Any = open_storage(f"s3://{BUCKET}?endpoint={rclone_s3.endpoint}")
    with pytest.raises(TargetRefusedError, match="prefix"):
        root.check_target()
    below: Any = open_storage(rclone_s3.url("some/prefix"))
    below.check_target()
    assert list(below.list()) == []


def test_a_missing_object_is_told_from_a_missing_bucket(pair: tuple[S3Server, str]) -> None:
    server, client = pair
    here: Any = open_storage(server.url(client=client))
    nowhere: Any = open_storage(server.url(client=client, bucket="no-such-bucket"))
    for call in (lambda s: read(s, "no", 0, 1), lambda s: s.size("no"), lambda s: s.delete("no")):
        with pytest.raises(MissingObjectError):
            call(here)
        with pytest.raises(StorageError, match="no such bucket") as caught:
            call(nowhere)
        assert not isinstance(caught.value, MissingObjectError)
    for call in (
        lambda s: list(s.list()),
        lambda s: put(s, "x"),
        lambda s: put(s, "x", bytes(PART + 1)),
    ):
        with pytest.raises(StorageError, match="no such bucket"):
            call(nowhere)
    here.close()
    nowhere.close()


def test_the_environment_names_the_endpoint(
    rclone_s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", rclone_s3.endpoint)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    for client in ("obstore", "s3fs", "boto3"):
        storage: Any = open_storage(f"s3://{BUCKET}/env-{client}?client={client}")
        put(storage, "x")
        facts = storage.facts()
        assert (facts["endpoint"], facts["region"]) == (rclone_s3.endpoint, "eu-central-1")
        storage.close()


def test_a_profile_of_the_shared_files_is_found(
    rclone_s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    shared = tmp_path / "credentials"
    key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    shared.write_text(f"[mine]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
    (tmp_path / "config").write_text(
        f"[profile mine]\nregion = eu-north-1\nendpoint_url = {rclone_s3.endpoint}\n"
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    for client in ("obstore", "s3fs", "boto3"):
        storage: Any = open_storage(f"s3://{BUCKET}/profile-{client}?client={client}")
        put(storage, "x")
        assert storage.facts()["region"] == "eu-north-1"
        storage.close()


@pytest.mark.parametrize("client", ["obstore", "s3fs", "boto3"])
def test_checksums_wherever_the_client_can(swift_s3: S3Server, client: str) -> None:
    storage: Any = open_storage(
        swift_s3.url(client=client, checksum="when_supported", part_size=PART)
    )
    put(storage, "small", content(1000))
    put(storage, "large", content(PART + 5))
    assert read(storage, "small", 10, 100) == content(1000)[10:110]
    assert read(storage, "large", 0, 2 * PART) == content(PART + 5)
    assert storage.facts()["checksum"] == "when_supported"
    storage.close()


@pytest.mark.parametrize("client", ["obstore", "s3fs", "boto3"])
def test_another_checksum_is_one_line(rclone_s3: S3Server, client: str) -> None:
    """rclone sends the checksum of the whole object with a part of it."""
    storage = open_storage(rclone_s3.url(client=client, checksum="when_supported"))
    put(storage, "x", content(1000))
    assert read(storage, "x", 0, 1000) == content(1000)
    with pytest.raises(StorageError, match="checksum"):
        read(storage, "x", 10, 100)
    storage.close()

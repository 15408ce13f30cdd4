"""The contracts of codecs, contents and formats."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..data.codecs import CODECS
from ..data.codecs.base import Codec
from ..data.contents.base import Content
from ..data.dataset import index_file
from ..data.formats.base import Assembled, Blocks, Format, Framed
from ..data.generator.engine import generate
from ..data.verify import verify
from ..load.build import make_loader
from ..record.manifest import Manifest
from ..settings.base import build
from ..settings.dataset import DatasetSpec
from ..storage.local.storage import LocalStorage
from ..storage.simulated.memory import MemoryStorage

TEXT = b"".join(b"line %d of something that compresses\n" % (i % 1000) for i in range(40_000))


def generated(root: Path, **spec: Any) -> Manifest:
    """Generate a dataset in ``root``: 60 samples of 20,000 bytes, or as ``spec`` says."""
    full = {"name": "demo", "samples": 60, "sample_size": {"mean": 20_000}, **spec}
    made = build(DatasetSpec, full, where="the test")
    return generate(made, LocalStorage(root), workers=0).manifest


def decompressed(codec: Codec, stored: bytes, size: int) -> bytes:
    """Return the content of a stream that holds ``size`` bytes."""
    out = bytearray(size)
    assert codec.decompress(memoryview(stored), memoryview(out)) == size
    return bytes(out)


class CodecContract:
    """What holds for every codec. A subclass has the fixture ``codec``."""

    @pytest.fixture
    def codec(self) -> Codec:
        """Return an instance of the codec's default level."""
        raise NotImplementedError("a subclass of CodecContract needs the fixture 'codec'")

    @pytest.fixture
    def compressing(self, codec: Codec) -> Codec:
        """Return the codec; tests of what only a codec that compresses does are left out."""
        if codec.plain:
            pytest.skip("this codec stores the content itself")
        return codec

    def test_it_has_a_suffix(self, codec: Codec) -> None:
        assert codec.suffix == "" or codec.suffix.startswith(".")
        assert codec.level is None

    def test_what_is_compressed_is_read(self, codec: Codec) -> None:
        chance = np.random.default_rng(1)
        contents = [chance.bytes(size) for size in (1, 2, 100, 4096, 5000)]
        contents += [TEXT[: int(size)] for size in chance.integers(1, 300_000, size=20)]
        for content in contents:
            stored = bytes(codec.compress(memoryview(content)))
            assert decompressed(codec, stored, len(content)) == content

    def test_deterministic_and_from_many_threads(self, codec: Codec) -> None:
        with ThreadPoolExecutor(4) as threads:
            stored = list(threads.map(lambda _: bytes(codec.compress(memoryview(TEXT))), range(8)))
            assert len(set(stored)) == 1
            assert all(threads.map(lambda s: decompressed(codec, s, len(TEXT)) == TEXT, stored * 4))

    def test_compresses(self, compressing: Codec) -> None:
        assert len(compressing.compress(memoryview(TEXT))) < len(TEXT) / 2

    def test_levels(self, compressing: Codec) -> None:
        kind = type(compressing)
        with pytest.raises(ValueError, match="level"):
            kind(1000)
        for level in compressing.levels[:1]:
            made = kind(level)
            assert (made.level, made.used_level) == (level, level)
            assert decompressed(made, bytes(made.compress(memoryview(TEXT))), len(TEXT)) == TEXT
            assert pickle.loads(pickle.dumps(made)) == made != compressing

    def test_truncated_is_an_error(self, compressing: Codec) -> None:
        stored = bytes(compressing.compress(memoryview(TEXT)))
        for cut in (0, 1, 5, len(stored) // 2, len(stored) - 1):
            with pytest.raises(ValueError):
                compressing.decompress(memoryview(stored[:cut]), memoryview(bytearray(len(TEXT))))

    def test_garbage_is_an_error_of_one_line(self, compressing: Codec) -> None:
        stored = bytes(compressing.compress(memoryview(TEXT)))
        garbage = b"this is not compressed at all" * 10
        for bad in (garbage, stored + b"garbage after the end", bytes(100)):
            with pytest.raises(ValueError) as caught:
                compressing.decompress(memoryview(bad), memoryview(bytearray(len(TEXT))))
            assert "\n" not in str(caught.value)

    def test_a_flipped_bit_never_crashes_or_overflows(self, compressing: Codec) -> None:
        content = TEXT[:50_000]
        whole = bytes(compressing.compress(memoryview(content)))
        for place in np.random.default_rng(2).integers(0, 8 * len(whole), size=200).tolist():
            stored = bytearray(whole)
            stored[place // 8] ^= 1 << place % 8
            out = bytearray(len(content)) + b"\xaa" * 64
            with suppress(ValueError):
                compressing.decompress(memoryview(stored), memoryview(out)[: len(content)])
            assert out[len(content) :] == b"\xaa" * 64

    def test_more_than_expected_is_an_error_and_not_memory(self, codec: Codec) -> None:
        bomb = bytes(codec.compress(memoryview(bytes(64 << 20))))
        tracemalloc.start()
        try:
            with pytest.raises(ValueError, match="more than"):
                codec.decompress(memoryview(bomb), memoryview(bytearray(1000)))
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()


def built(
    content: Content,
    size: int,
    *,
    seed: int = 1,
    index: int = 0,
    ratio: float = 1.0,
    shift: int = 0,
) -> bytes:
    """Return a sample; ``shift``: how many bytes before it lie in the same memory."""
    whole = memoryview(bytearray(size + shift))
    content.build(whole[shift:], seed=seed, index=index, compress_ratio=ratio)
    return bytes(whole[shift:])


def decoded(content: Content, data: bytes) -> bytes:
    """Return the decoded bytes of a sample; nothing is written behind them."""
    size = content.decoded_bytes(memoryview(data))
    out = bytearray(size + 16)
    assert content.decode(memoryview(data), memoryview(out)) == size
    assert out[size:] == bytes(16)
    return bytes(out[:size])


class ContentContract:
    """What holds for every content. A subclass has the fixture ``content``."""

    @pytest.fixture
    def content(self) -> Content:
        """Return an instance of the content."""
        raise NotImplementedError("a subclass of ContentContract needs the fixture 'content'")

    def test_a_sample_depends_on_seed_and_number_alone(self, content: Content) -> None:
        chance = np.random.default_rng(3)
        for extra, seed, index in chance.integers(0, 120_000, size=(40, 3)).tolist():
            size, seed, index = content.min_bytes + extra, seed << 40, index << 16
            data = built(content, size, seed=seed, index=index)
            assert data == built(content, size, seed=seed, index=index, shift=extra % 9)
            if size >= 1024:
                assert content.identify(memoryview(data)) in (None, (seed, index))
            length = len(decoded(content, data))
            assert 0 < length <= content.max_expansion * size

    def test_samples_share_no_block(self, content: Content) -> None:
        data = b"".join(built(content, 40_001, index=i) for i in range(100))
        blocks = [data[i : i + 4096] for i in range(0, len(data) - 4095, 4096)]
        assert len(set(blocks)) == len(blocks)

    def test_nothing_can_be_compressed(self, content: Content) -> None:
        data = built(content, 200_000)
        assert len(CODECS.open("zstd").compress(memoryview(data))) > 0.9 * len(data)

    def test_too_small_is_refused(self, content: Content) -> None:
        if content.min_bytes == 1:
            pytest.skip("a sample of this content may have any size")
        with pytest.raises(ValueError, match="at least"):
            built(content, content.min_bytes - 1)

    def test_others_are_not_identified(self, content: Content) -> None:
        jpegs = (b"\xff\xd8\xff\xef\0\x04zz", b"\xff\xd8" + bytes(100))
        for data in (b"", bytes(10), bytes(5000), *jpegs):
            assert content.identify(memoryview(data)) is None

    def test_malformed_is_a_value_error(self, content: Content) -> None:
        if content.plain:
            pytest.skip("any bytes are a sample of this content")
        good = built(content, 30_000)
        for bad in (b"", b"PK", bytes(2000), good[: len(good) // 2], good[:100]):
            with pytest.raises(ValueError):
                decoded(content, bad)


def packed(
    form: Format, samples: Sequence[bytes], first: int = 0, *, suffix: str = ".bin"
) -> tuple[bytes, list[int]]:
    """Return a shard, and where the stored bytes of each sample begin."""
    if isinstance(form, Assembled):
        return assembled(form, samples)[:2]
    assert isinstance(form, Framed)
    shard, offsets = bytearray(), []
    for number, sample in enumerate(samples, first):
        frame = form.frame(number, suffix, memoryview(sample))
        margins = form.margins(number, suffix, len(sample))
        assert margins == (len(frame.head), len(frame.tail))
        offsets.append(len(shard) + len(frame.head))
        shard += frame.head + sample + frame.tail
    shard += form.finish(len(shard))
    return bytes(shard), offsets


def assembled(
    form: Assembled, samples: Sequence[bytes], **spec: Any
) -> tuple[bytes, list[int], list[int]]:
    """Return the same of a format that builds whole shards, and the stored bytes of each sample.

    The contents come from memory that is used again, as they do when a dataset is generated.
    """
    sizes = np.array([len(sample) for sample in samples], np.int64)
    size: dict[str, Any] = {
        "distribution": "quantiles",
        "quantiles": [[0, int(sizes.min())], [1, int(sizes.max())]],
    }
    if sizes.min() == sizes.max():
        size = {"mean": int(sizes[0])}
    full = {
        "name": "x",
        "samples": len(samples),
        "sample_size": {**size, "min": int(sizes.min())},
        "format": form.name,
        **spec,
    }
    shard = bytearray()

    def contents() -> Iterator[memoryview]:
        scratch = bytearray(int(sizes.max()))
        for sample in samples:
            scratch[: len(sample)] = sample
            yield memoryview(scratch)[: len(sample)]

    made = build(DatasetSpec, full, where="the test")
    codec = CODECS.open(made.codec)
    form.check_spec(made, codec)
    offset, stored = form.assemble(contents(), sizes, shard.extend, spec=made, codec=codec)
    return bytes(shard), offset.tolist(), stored.tolist()


class FormatContract:
    """What holds for every format. A subclass has the fixture ``form``.

    The format must be registered under its name, since datasets are generated.
    """

    @pytest.fixture
    def form(self) -> Format:
        """Return an instance of the format."""
        raise NotImplementedError("a subclass of FormatContract needs the fixture 'form'")

    @pytest.fixture
    def spec(self, form: Format) -> dict[str, Any]:
        """Return what the specification of a small dataset says of its shards."""
        shards = {} if form.one_sample_per_shard else {"samples_per_shard": 10}
        return {"format": form.name, "samples": 25, "sample_size": {"mean": 500}, **shards}

    def test_each_sample_lies_at_its_offset(self, form: Format) -> None:
        if isinstance(form, Blocks):
            pytest.skip("the samples of this format are parts of blocks")
        chance = np.random.default_rng(4)
        for count in range(1, 2 if form.one_sample_per_shard else 13):
            halves = [chance.bytes(int(n)) for n in chance.integers(1, 1500, size=count)]
            samples = [2 * half for half in halves]
            shard, offsets = packed(form, samples, int(chance.integers(0, 10**9)))
            found = [shard[o : o + len(s)] for o, s in zip(offsets, samples, strict=True)]
            assert found == samples

    def test_a_damaged_frame_is_one_line(self, form: Format) -> None:
        if not (isinstance(form, Framed) and form.has_checksums):
            pytest.skip("this format has no checksums of its own")
        whole = packed(form, [b"a" * 700])[0]
        framed = whole[: len(whole) - len(form.finish(0))]
        form.check(memoryview(framed))
        head = form.margins(0, ".bin", 700)[0]
        for place in np.random.default_rng(5).integers(0, len(framed), size=100).tolist():
            with pytest.raises(ValueError) as caught:
                form.check(memoryview(framed)[:place])
            assert "\n" not in str(caught.value)
            damaged = bytearray(framed)
            damaged[place % head] ^= 16
            with pytest.raises(ValueError) as caught:
                form.check(memoryview(damaged))
            assert "\n" not in str(caught.value)

    def test_the_same_spec_gives_the_same_bytes(self, spec: dict[str, Any], tmp_path: Path) -> None:
        manifests = [generated(tmp_path / name, **spec) for name in ("one", "two")]
        for key in map(manifests[0].key, range(manifests[0].shard_count)):
            assert (tmp_path / "one" / key).read_bytes() == (tmp_path / "two" / key).read_bytes()

    def test_what_is_generated_is_loaded(self, spec: dict[str, Any], tmp_path: Path) -> None:
        manifest = generated(tmp_path, **spec)
        assert verify(LocalStorage(tmp_path), manifest, workers=0).ok
        reader: dict[str, object] = {"shuffle": False, "direct": False}
        loader = make_loader(tmp_path, batch_size=7, reader=reader, loader={"workers": 0})
        try:
            samples = [bytes(sample.numpy()) for batch in loader for sample in batch]
        finally:
            loader.shutdown()
        assert [len(sample) for sample in samples] == manifest.samples["size"].tolist()
        assert len(set(samples)) == len(samples)

    def test_verify_finds_any_flipped_bit(self, spec: dict[str, Any], tmp_path: Path) -> None:
        small = {"samples": 6, "sample_size": {"mean": 100}}
        shards = {"samples_per_shard": 3} if "samples_per_shard" in spec else {}
        flipped_bits_are_found(tmp_path, **{**spec, **small, **shards})


def flipped_bits_are_found(root: Path, **spec: Any) -> None:
    """Flip a hundred bits of a shard of such a dataset, one at a time: verify names the shard."""
    manifest = generated(root, **spec)
    keys = [manifest.key(shard) for shard in range(manifest.shard_count)]
    objects = {key: bytearray((root / key).read_bytes()) for key in keys}
    held = {key: memoryview(data) for key, data in objects.items()}
    if (index := index_file(manifest)) is not None:
        held[index[0]] = memoryview((root / index[0]).read_bytes())
    storage = MemoryStorage(objects=held)
    assert verify(storage, manifest, workers=0).ok
    shard = objects[keys[1]]
    for position in range(0, len(shard), max(1, len(shard) // 100)):
        shard[position] ^= 16
        damages = verify(storage, manifest, workers=0).damages
        assert {damage.shard for damage in damages} == {keys[1]}, position
        shard[position] ^= 16
    assert verify(storage, manifest, workers=0).ok

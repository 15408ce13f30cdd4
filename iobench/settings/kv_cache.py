"""The specification of a KV cache that is kept on storage: model, traffic, tiers and layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from ..base.errors import SpecError
from .base import Bytes, Seconds, Strict, build, read_spec
from .scenario import ArrivalSpec
from .workload import Engine, option_texts

MAX_LOADING = 256
"""Largest ``reader.concurrency``, and largest ``reader.depth``: each is a thread."""

MAX_CONTEXT = 131_072
"""Tokens up to which the report looks for the context length from which on loading wins."""


class KvModel(Strict):
    """The dimensions of a model that decide the size of its KV cache and the work of its prefill.

    ``layers``: those of the model. ``head_dim``: elements of a head. ``parameters``: those that
    work on one token (of a mixture of experts, the active ones). ``latent``: elements that a token
    has in a layer where keys and values are compressed together (multi-head latent attention, MLA);
    None: keys and values of ``kv_heads``, which all query ``heads`` share.
    """

    name: str = "own"
    layers: int = Field(ge=1, le=10_000)
    heads: int = Field(ge=1, le=100_000)
    kv_heads: int = Field(ge=1, le=100_000)
    head_dim: int = Field(ge=1, le=100_000)
    parameters: float = Field(gt=0, le=1e15)
    latent: int | None = Field(default=None, ge=1, le=10**6)

    @property
    def token_elements(self) -> int:
        """Elements that one token has in one layer."""
        return self.latent or 2 * self.kv_heads * self.head_dim


def _model(name: str, *dimensions: int, active: float, latent: int | None = None) -> KvModel:
    layers, heads, kv_heads, head_dim = dimensions
    return KvModel(
        name=name, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        parameters=active, latent=latent,
    )  # fmt: skip


KV_MODELS: dict[str, KvModel] = {
    model.name: model
    for model in (
        _model("llama3-8b", 32, 32, 8, 128, active=8.03e9),
        _model("llama3-70b", 80, 64, 8, 128, active=70.6e9),
        _model("llama3-405b", 126, 128, 8, 128, active=405.9e9),
        _model("qwen3-8b", 36, 32, 8, 128, active=8.19e9),
        _model("qwen3-32b", 64, 64, 8, 128, active=32.8e9),
        _model("qwen3-30b-a3b", 48, 32, 4, 128, active=3.3e9),
        _model("qwen3-235b-a22b", 94, 64, 4, 128, active=22e9),
        # A query and a key have 192 elements, a value 128: their mean is the work of a head.
        _model("deepseek-v3", 61, 128, 128, 160, active=37e9, latent=512 + 64),
    )
}
"""Released models, by the ``config.json`` of each. Llama's are those of version 3.1."""


def _known_model(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value not in KV_MODELS:
        raise ValueError(
            f"no model '{value}' is known ({', '.join(KV_MODELS)}): give its dimensions as keys "
            "(layers, heads, kv_heads, head_dim, parameters)"
        )
    return KV_MODELS[value]


class PrefillSpec(Strict):
    """How fast the tokens of a prompt are computed.

    By their floating point operations: ``accelerators`` of one engine with ``flops`` per second
    each, of which the share ``mfu`` is reached; or by the measured ``tokens_per_s`` of an engine.
    ``engines`` take prompts one at a time, in the order in which their loads have ended.
    """

    accelerators: int = Field(default=1, ge=1, le=10_000)
    flops: float = Field(default=989e12, gt=0, le=1e20)
    mfu: float = Field(default=0.5, gt=0, le=1)
    tokens_per_s: float | None = Field(default=None, gt=0, le=1e12)
    engines: int = Field(default=1, ge=1, le=10_000)


class PromptSpec(Strict):
    """The prompts of sessions. The first one of a session is a shared prefix and its own tokens.

    Each further one is the one before, the answer to it (``output_tokens``) and more tokens of its
    own: lognormal with the median ``new_tokens`` and the 90th percentile ``new_tokens_p90``. Of
    ``prefixes`` shared prefixes of ``shared_tokens`` each, the k-th is as frequent as 1 / k.
    Prompts are cut at ``max_tokens``.
    """

    shared_tokens: int = Field(default=0, ge=0, le=10**6)
    prefixes: int = Field(default=1, ge=1, le=10**6)
    new_tokens: int = Field(default=1000, ge=1, le=10**6)
    new_tokens_p90: int = Field(default=4000, ge=1, le=10**6)
    output_tokens: int = Field(default=300, ge=0, le=10**6)
    max_tokens: int = Field(default=MAX_CONTEXT, ge=1, le=10**6)

    @model_validator(mode="after")
    def _fits(self) -> PromptSpec:
        if self.new_tokens_p90 < self.new_tokens:
            raise ValueError("'new_tokens_p90' is at least 'new_tokens', its median")
        if self.shared_tokens >= self.max_tokens:
            raise ValueError("'shared_tokens' are fewer than 'max_tokens'")
        return self


class KvReader(Strict):
    """How chunks are loaded: ``concurrency`` requests at a time, ``depth`` reads of each.

    ``block_size``: of one read at most. ``direct``: past the page cache. ``engine``: what keeps the
    reads of a request in flight: ``io_uring`` (local files), ``event_loop`` (S3) or ``threads``,
    which are used where the other two can't read. ``auto``: what takes least time and CPU time:
    ``event_loop`` on S3, ``io_uring`` for local files that stay open, and threads for the rest.
    """

    concurrency: int = Field(default=16, ge=1, le=MAX_LOADING)
    depth: int = Field(default=8, ge=1, le=MAX_LOADING)
    block_size: Bytes = Field(default=4 << 20, ge=4096, le=1 << 30)
    direct: Literal["auto"] | bool = "auto"
    engine: Engine = "auto"


class KvScenario(Strict):
    """A KV cache in two tiers, memory and storage, and the requests that use it.

    ``kind``: what tells such a file from one of requests for samples. ``model``: a name, or its
    dimensions. ``chunk_tokens``: tokens of one chunk of the cache, which is read or written whole.
    ``writers``: chunks that are written at once. ``prefill``, ``arrivals``, ``prompts`` and
    ``reader`` have keys of their own, and ``storage`` has options of the storage. ``layers``:
    measure with fewer layers than the model has, so that less data is moved; the prefill and the
    limit are then of so many layers, too. ``dtype``: of the cache. ``tensor_parallel``: ranks of an
    engine, each of which stores its own heads of a chunk; a compressed cache (MLA) is stored once.
    ``dram``: bytes of the tier in memory; ``capacity``: of the tier on storage, both for all
    layers. ``memory``: what is found in memory is only counted, or really lies there and is copied.
    ``admission``: whether a chunk is written when it is first computed, or when it is used again.
    ``layout``: each chunk is a file or an object of each rank, or all are extents of one file of a
    local or mounted file system, whose index is in memory. ``lookups``: whether each chunk that is
    not in memory is looked for on the storage, or in an index in memory. ``durable``: a chunk is on
    disk before it counts as written. ``limit``: the longest time to the first token of the share
    ``quantile`` of the requests. ``duration``: for so long requests arrive in a window.
    """

    kind: Literal["kv-cache"] = "kv-cache"
    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    source: str = ""
    model: Annotated[KvModel, BeforeValidator(_known_model)]
    layers: int | None = Field(default=None, ge=1)
    dtype: Literal["bf16", "fp8"] = "bf16"
    tensor_parallel: int = Field(default=1, ge=1, le=4096)
    chunk_tokens: int = Field(default=256, ge=1, le=65_536)
    prefill: PrefillSpec = PrefillSpec()
    arrivals: ArrivalSpec = ArrivalSpec(kind="sessions")
    prompts: PromptSpec = PromptSpec()
    dram: Bytes = Field(default=0, ge=0, le=1 << 60)
    memory: Literal["modelled", "real"] = "modelled"
    capacity: Bytes = Field(default=1 << 40, ge=1, le=1 << 60)
    admission: Literal["always", "seen-twice"] = "always"
    layout: Literal["files", "extents"] = "files"
    lookups: Literal["storage", "memory"] = "storage"
    durable: bool = False
    reader: KvReader = KvReader()
    writers: int = Field(default=8, ge=1, le=256)
    limit: Seconds = Field(gt=0, le=3600)
    quantile: float = Field(default=0.99, ge=0.5, le=0.9999)
    duration: Seconds = Field(default=30.0, gt=0, le=86_400)
    storage: dict[str, str | int | float | bool] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> KvScenario:
        if self.measured_layers > self.model.layers:
            raise ValueError(f"'layers' is at most {self.model.layers}, those of the model")
        longest = -(-self.prompts.max_tokens // self.chunk_tokens)
        # The prompts of a trace are as long as they are: that is checked when it is read.
        if self.arrivals.kind != "trace" and self.capacity_chunks < longest:
            raise ValueError(
                f"the longest prompt has {longest:,} chunks, and 'capacity' has room for "
                f"{self.capacity_chunks:,}: raise 'capacity', or lower 'prompts.max_tokens'"
            )
        return self

    @property
    def measured_layers(self) -> int:
        return self.layers or self.model.layers

    @property
    def share(self) -> float:
        """The part of the model that is measured: 1 for all of its layers."""
        return self.measured_layers / self.model.layers

    @property
    def limit_s(self) -> float:
        """The limit for the layers that are measured."""
        return self.limit * self.share

    @property
    def looks_up(self) -> bool:
        """Whether chunks are looked for on the storage."""
        return self.lookups == "storage" and self.layout == "files"

    @property
    def pieces(self) -> int:
        """Objects of a chunk: one of each rank that has heads of its own, or a copy of one."""
        return 1 if self.model.latent else self.tensor_parallel

    @property
    def token_bytes(self) -> int:
        """Bytes that one token has in one layer, in all pieces."""
        element = 2 if self.dtype == "bf16" else 1
        if self.model.latent:
            return element * self.model.latent
        copies = max(1, -(-self.tensor_parallel // self.model.kv_heads))
        return element * self.model.token_elements * copies

    @property
    def piece_bytes(self) -> int:
        """Bytes of one object."""
        return self.chunk_tokens * self.token_bytes * self.measured_layers // self.pieces

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk in all its pieces."""
        return self.piece_bytes * self.pieces

    @property
    def whole_chunk_bytes(self) -> int:
        """Bytes of a chunk of all layers."""
        return self.chunk_tokens * self.token_bytes * self.model.layers

    @property
    def dram_chunks(self) -> int:
        return self.dram // self.whole_chunk_bytes

    @property
    def capacity_chunks(self) -> int:
        return self.capacity // self.whole_chunk_bytes

    def prefill_s(self, tokens: float, cached: float = 0.0) -> float:
        """Seconds until a prompt of so many tokens is computed, of which the first are cached.

        2 N operations for each token and 2 L d T² for the attention to the tokens before it (N:
        active parameters, L: layers, d: elements of all heads, T: tokens), over what the
        accelerators of one engine reach.
        """
        spec, model = self.prefill, self.model
        if spec.tokens_per_s is not None:
            return self.share * (tokens - cached) / spec.tokens_per_s
        attention = 2 * model.layers * model.heads * model.head_dim * (tokens**2 - cached**2)
        work = 2 * model.parameters * (tokens - cached) + attention
        return self.share * work / (spec.accelerators * spec.flops * spec.mfu)

    def storage_options(self) -> dict[str, str]:
        """Return the options of the storage as they are written in a URL."""
        return option_texts(self.storage)


def load_kv_scenario(name: str, overrides: Sequence[str] = ()) -> KvScenario:
    """Load a scenario of a KV cache by name or path, with ``a.b=c`` overrides.

    Raises SpecError, UnknownNameError.
    """
    data, where = read_spec("scenario", name, overrides)
    if data.get("kind") != "kv-cache":
        raise SpecError(
            f"{where} is no scenario of a KV cache: it has no 'kind: kv-cache'",
            remedy="requests for samples are measured with: iobench serve",
        )
    return build(KvScenario, data, where=where)

"""The specification of a serving scenario: requests that arrive, and what answers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..base.errors import SpecError
from .base import Bytes, Seconds, Strict, build, read_spec
from .workload import AcceleratorSpec, LoaderSpec, LogSpec, ReaderSpec, Workload, option_texts

MAX_IN_FLIGHT = 1024
"""Largest ``reader.concurrency``: each read in flight is a thread of this process."""

TraceFormat = Literal["plain", "mooncake", "bailian", "azure", "sessions"]
"""``plain``, ``bailian``: a column ``timestamp`` in seconds. ``mooncake``: in milliseconds.
``azure``: a column ``TIMESTAMP`` with dates. ``sessions``: calls of agents in any order, as GitHub
Copilot's traces (a line for each session) and TraceLab's (a line for each call) have them."""


class ArrivalSpec(Strict):
    """When requests arrive, whatever becomes of those before them.

    ``kind``: ``poisson``: independently of one another. ``gamma``: in bursts; ``cv`` is the
    standard deviation of the gaps over their mean (1 is Poisson, larger is burstier). ``constant``:
    evenly. ``sessions``: each session has ``turns`` requests on average (geometric); before each of
    them but the first there is a pause, that of a tool in ``tool_share`` of the cases and that of a
    person otherwise, exponential with the mean ``tool_pause`` or ``person_pause``. ``trace``: as
    recorded in the file ``path``, of the ``format`` of its writer; with a rate, the time between
    its requests is stretched. ``rate``: requests per second, on average; None: those of the trace,
    or not known yet.
    """

    kind: Literal["poisson", "gamma", "constant", "sessions", "trace"] = "poisson"
    rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    cv: float = Field(default=1.0, ge=0.01, le=100)
    turns: float = Field(default=8.0, ge=1, le=10_000)
    tool_share: float = Field(default=0.5, ge=0, le=1)
    tool_pause: Seconds = Field(default=2.0, gt=0, le=3600)
    person_pause: Seconds = Field(default=30.0, gt=0, le=86_400)
    path: str | None = Field(default=None, min_length=1)
    format: TraceFormat = "plain"

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> ArrivalSpec:
        if (self.kind == "trace") != (self.path is not None):
            raise ValueError(
                "kind 'trace' and 'path', its file, belong together, and one is missing"
            )
        for kind, names in _OF_KIND.items():
            for name in sorted(names & self.model_fields_set):
                default = type(self).model_fields[name].default
                if self.kind != kind and getattr(self, name) != default:
                    raise ValueError(
                        f"'{name}' is of kind '{kind}', and kind '{self.kind}' has none"
                    )
        return self

    @property
    def pause(self) -> float:
        """The mean pause between two requests of a session, in seconds."""
        return self.tool_share * self.tool_pause + (1 - self.tool_share) * self.person_pause


_OF_KIND = {
    "gamma": {"cv"},
    "sessions": {"turns", "tool_share", "tool_pause", "person_pause"},
    "trace": {"format"},
}


class RequestReader(Strict):
    """How the sample of a request is read.

    ``concurrency``: reads in flight, each of a request; a request that finds none free waits.
    ``direct``, ``block_size`` and ``decode``: as of a workload's reader.
    """

    concurrency: int = Field(default=64, ge=1, le=MAX_IN_FLIGHT)
    direct: Literal["auto"] | bool = "auto"
    block_size: Bytes = Field(default=4 << 20, ge=4096, le=1 << 30)
    decode: bool = False


Probes = Annotated[int, Field(ge=1, le=65_536)]
Refine = Annotated[int, Field(ge=0, le=1000)]


class SearchSpec(Strict):
    """The search of one query in an index on disk: rounds of reads, each known from the last.

    ``search_list``: candidates that a search keeps (DiskANN's L). It reads ``reads_per_candidate``
    nodes for each of them: 0.77 in DiskANN's own table of SIFT, 0.88 there at 10 candidates.
    ``spread``: the standard deviation of the reads of a query over their mean (lognormal).
    ``beam_width``: nodes that are read at once (DiskANN's W).
    """

    search_list: int = Field(default=100, ge=1, le=10**5)
    reads_per_candidate: float = Field(default=0.77, gt=0, le=10)
    spread: float = Field(default=0.1, ge=0, le=2)
    beam_width: int = Field(default=4, ge=1, le=256)

    @property
    def reads(self) -> int:
        """Nodes that a query reads on average."""
        return max(1, round(self.search_list * self.reads_per_candidate))

    @property
    def rounds(self) -> int:
        """Rounds of a query with that many reads."""
        return -(-self.reads // self.beam_width)


class EngineSpec(Strict):
    """A real engine of vector search, which builds an index of the samples and reads by itself.

    ``kind``: LanceDB, with an IVF_PQ index of ``partitions``, and codes of ``sub_vectors`` bytes.
    The vectors lie around ``clusters`` centres. A query asks for its ``top`` nearest ones: the
    engine reads the codes of the ``nprobes`` closest partitions, and the vectors of ``refine``
    times as many candidates as it returns (0: of none). ``curve``: pairs of nprobes and refine at
    which recall, queries/s and latency are measured, each with ``queries`` of its own.
    """

    kind: Literal["lancedb"]
    partitions: int = Field(default=256, ge=1, le=65_536)
    sub_vectors: int = Field(default=16, ge=1, le=4096)
    clusters: int = Field(default=1000, ge=1, le=65_536)
    top: int = Field(default=10, ge=1, le=1000)
    nprobes: int = Field(default=16, ge=1, le=65_536)
    refine: int = Field(default=10, ge=0, le=1000)
    curve: tuple[tuple[Probes, Refine], ...] = Field(
        default=((1, 0), (16, 0), (1, 10), (4, 10), (16, 10), (16, 50)), min_length=2, max_length=50
    )
    queries: int = Field(default=200, ge=20, le=10_000)


class Scenario(Strict):
    """Requests for one sample each, which is read from storage and goes through an accelerator.

    With ``walk`` a request is the search of a query in an index, whose nodes are the samples, and
    the accelerators stand for the cores that compute distances. With ``engine`` it is one of a real
    engine over vectors, which computes by itself.

    ``accelerators`` take the samples that were read, in order, in batches of at most
    ``batch_size``. A batch is begun when it is full, or when its first sample has waited for
    ``batch_delay``; it takes ``step_time``, full or not. ``limit``: the longest latency of the
    share ``quantile`` of the requests. ``log``: of the log, if one is written. ``duration``: for
    how long requests arrive in a repetition. ``dataset``: the name of the one that it is meant for.
    ``cache``: as of a workload. ``arrivals``, ``reader``, ``walk``, ``engine`` and ``log`` have
    keys of their own. ``storage`` has options of the data's storage.
    """

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    source: str = ""
    dataset: str
    limit: Seconds = Field(gt=0, le=3600)
    quantile: float = Field(default=0.99, ge=0.5, le=0.9999)
    step_time: Seconds = Field(gt=0, le=3600)
    batch_size: int = Field(default=1, ge=1, le=10**6)
    batch_delay: Seconds = Field(default=0.0, ge=0, le=3600)
    accelerators: int = Field(default=1, ge=1, le=10**5)
    arrivals: ArrivalSpec = ArrivalSpec()
    reader: RequestReader = RequestReader()
    walk: SearchSpec | None = None
    engine: EngineSpec | None = None
    log: LogSpec = LogSpec()
    cache: Literal["cold", "warm", "any"] = "cold"
    duration: Seconds = Field(default=10.0, gt=0, le=86_400)
    storage: dict[str, str | int | float | bool] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _a_step_fits(self) -> Scenario:
        if self.limit <= self.step_time:
            raise ValueError(
                f"a limit of {self.limit:g} s is not longer than one step of {self.step_time:g} s, "
                "so no request can hold it: raise 'limit', or lower 'step_time'"
            )
        return self

    @model_validator(mode="after")
    def _one_kind_of_search(self) -> Scenario:
        if self.walk is not None and self.engine is not None:
            raise ValueError("a search is emulated by 'walk', or made by an 'engine': remove one")
        return self

    @property
    def most_per_s(self) -> float:
        """Requests per second of all accelerators, if every batch is full."""
        return self.accelerators * self.batch_size / self.step_time

    def storage_options(self) -> dict[str, str]:
        """Return the options of the storage as they are written in a URL."""
        return option_texts(self.storage)

    def workload(self) -> Workload:
        """The workload whose reader reads the sample of one request."""
        return Workload(
            name=self.name,
            dataset=self.dataset,
            accelerator=AcceleratorSpec(step_time=self.step_time, sync="none"),
            batch_size=1,
            cache=self.cache,
            reader=ReaderSpec(
                access="random",
                direct=self.reader.direct,
                block_size=self.reader.block_size,
                decode=self.reader.decode,
                concurrency=1,
                read_ahead=False,
            ),
            loader=LoaderSpec(workers=0),
            storage=self.storage,
        )


def load_scenario(name: str, overrides: Sequence[str] = ()) -> Scenario:
    """Load a scenario by name or path, with ``a.b=c`` overrides.

    Raises SpecError, UnknownNameError.
    """
    data, where = read_spec("scenario", name, overrides)
    if data.get("kind") == "kv-cache":
        raise SpecError(f"{where} is one of a KV cache", remedy="measure it with: iobench kv")
    return build(Scenario, data, where=where)

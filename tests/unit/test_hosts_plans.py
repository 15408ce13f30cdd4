"""What the first host of a job may have another one read, and run as code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.base.errors import UsageError, WorkerError
from iobench.record.job import LoaderFacts
from iobench.record.typed import of_text, to_text
from iobench.runner.hosts.hosts import Begin, SaveOrder
from iobench.runner.hosts.member import _Ranks
from iobench.runner.hosts.serving import Permitted, PlanOrder
from iobench.runner.hosts.sharing import share_of_tasks
from iobench.runner.messages import Recorded
from iobench.settings.base import apply_overrides, build
from iobench.settings.workload import Workload, load_workload

S3 = "s3://bucket/data?endpoint=http://10.0.0.1"
SWEPT = ("storage.client=s3fs", "storage.client=boto3", "loader.workers=2")


def order(*overrides: str, data: str = "/data", origin: str | None = None) -> PlanOrder:
    settings = load_workload("demo").model_dump(mode="json")
    return PlanOrder(
        workload=build(Workload, apply_overrides(settings, overrides), where="here"),
        data=data,
        origin=origin,
        accelerators=4,
        seed=1,
        first=2,
        count=2,
    )


def test_an_order_arrives_as_it_was_sent() -> None:
    sent = order("loader.workers=3", "storage.client=s3fs", data="/a \udcff name")
    assert of_text(to_text(sent, PlanOrder), PlanOrder) == sent


@pytest.mark.parametrize(
    "asked",
    [
        order("batch_size=7", data="/anywhere"),
        order("accelerator.model=resnet50", "accelerator.kind=model"),  # no code of the user's
        order("storage.client=boto3", data=S3),
        order(data="s3://bucket/data/demo-12ab?endpoint=http://10.0.0.1", origin=S3),
    ],
)
def test_what_the_command_names_is_made(asked: PlanOrder) -> None:
    Permitted.by([{"storage": {"client": "obstore"}}], SWEPT, [S3]).check(asked)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (order(data="s3://bucket/data?endpoint=http://10.0.0.2"), "10.0.0.2"),
        (order(data="s3://other/data?endpoint=http://10.0.0.1"), "other"),
        (order(data="s3://bucket/data/a/b?endpoint=http://10.0.0.1"), "a/b"),
        (order(data="s3://bucket/data/..?endpoint=http://10.0.0.1"), r"\.\."),
        (order(origin="nfs://server/export"), "nfs"),
        (order("storage.client=obstore"), "storage.client=obstore"),
        (order("storage.endpoint=http://10.0.0.2"), "storage.endpoint"),
        (order("accelerator.kind=model", "accelerator.model=os:getcwd"), "os:getcwd"),
        (order("loader.kind=user", "loader.factory=os:getcwd"), "loader.factory"),
    ],
)
def test_anything_else_is_refused_by_name(asked: PlanOrder, named: str) -> None:
    permitted = Permitted.by([], SWEPT, [S3])
    with pytest.raises(UsageError, match=named):
        permitted.check(asked)


def test_a_command_without_a_place_names_no_url() -> None:
    with pytest.raises(UsageError):
        Permitted().check(replace(order(), data=S3))


# Tasks that hosts share


@given(tasks=st.lists(st.integers(0, 10_000), unique=True, max_size=200), hosts=st.integers(1, 40))
def test_each_task_is_in_one_share_and_shares_are_equal(tasks: list[int], hosts: int) -> None:
    shares = [share_of_tasks(tasks, host, hosts) for host in range(hosts)]
    assert sorted(task for share in shares for task in share) == sorted(tasks)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_what_a_rank_has_recorded_is_kept_where_another_one_fails() -> None:
    recorded = Recorded(
        columns={}, cpu_s=1.0, complete=True, startups={}, fetched={}, loader=LoaderFacts()
    )

    def receive(*awaited: object) -> Iterator[tuple[int, Recorded]]:
        yield 0, recorded
        raise WorkerError("rank 1 died")

    order = Begin(first=0, count=2, world=2, offset_ns=0, number=1, order=SaveOrder("", "1/8192"))
    task: Any = None
    ranks = _Ranks(order, task, ExitStack())
    ranks.crew = Mock(receive=receive, is_alive=lambda rank: False)
    ranks.collect()
    assert ranks.kept == {0: recorded}

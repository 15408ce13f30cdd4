"""The shares of the hosts: together they are everything, and no task is in two of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iobench.runner.hosts.sharing import share_of_tasks


@given(tasks=st.lists(st.integers(0, 10_000), unique=True, max_size=200), hosts=st.integers(1, 40))
def test_each_task_is_in_one_share_and_shares_are_equal(tasks: list[int], hosts: int) -> None:
    shares = [share_of_tasks(tasks, host, hosts) for host in range(hosts)]
    assert sorted(task for share in shares for task in share) == sorted(tasks)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1

"""How ranges of queues become tasks."""

from __future__ import annotations

from rmqd.client.client_options import ClientOptions
from rmqd.spark.session.queue_range import QueueRange, share_tasks
from rmqd.spark.session.spark_access import Access
from rmqd.wire.message_queue import MessageQueue

ACCESS = Access(ClientOptions(nameservers=("127.0.0.1:9876",)))


def ranges(*counts: int) -> list[QueueRange]:
    return [
        QueueRange(queue=MessageQueue("orders", "broker-a", number), start=0, end=count, access=ACCESS)
        for number, count in enumerate(counts)
    ]


def tasks(counts: list[int], most: int | None, most_records: int | None = None) -> list[list[int]]:
    """The queue ids of each task."""
    return [[one.queue.queue_id for one in task] for task in share_tasks(ranges(*counts), most, most_records)]


def test_each_has_a_task_of_its_own_while_that_makes_no_more_than_may_be() -> None:
    """And where nothing limits them."""
    assert tasks([1, 1, 1], None) == tasks([1, 1, 1], 3) == [[0], [1], [2]]
    assert tasks([], 4) == []


def test_tasks_get_about_as_many_messages() -> None:
    """A long queue is alone, and the short ones are together, in their order."""
    assert tasks([10, 900, 10, 10, 10], 2) == [[1], [0, 2, 3, 4]]
    shared = share_tasks(ranges(*range(1, 1001)), 8, None)
    sums = [sum(map(len, task)) for task in shared]
    assert (len(sums), sum(sums)) == (8, 500_500)
    assert max(sums) - min(sums) <= 1000
    assert all([one.queue.queue_id for one in task] == sorted(one.queue.queue_id for one in task) for task in shared)


def test_no_shared_task_has_more_messages_than_one_may_have() -> None:
    """Rather there are more tasks; a range that has more by itself is not cut here."""
    assert tasks([5, 5, 5, 5, 5], 2, 10) == [[0, 2], [1, 3], [4]]
    assert tasks([50, 5, 5], 2, 10) == [[0], [1, 2]]

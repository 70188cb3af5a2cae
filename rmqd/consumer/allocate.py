"""Which member of a group gets which queue. Every member computes this alone, so results must equal Java's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rmqd.wire.message import MessageQueue

AllocateMessageQueueStrategy = Callable[[str, str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""(group, own client id, all queues sorted, all client ids sorted) -> own queues"""


def averagely(
    group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Contiguous shares; the first members get one more where it does not divide (`AllocateMessageQueueAveragely`)."""
    if client_id not in client_ids:
        return []
    index, members = client_ids.index(client_id), len(client_ids)
    share, rest = divmod(len(queues), members)
    size = share + 1 if index < rest else share
    start = index * size if index < rest else index * size + rest
    return list(queues[start : start + size])


ALLOCATE_STRATEGIES: Mapping[str, AllocateMessageQueueStrategy] = {"averagely": averagely}


def sorted_client_ids(client_ids: Sequence[str]) -> list[str]:
    """Client ids in Java's string order (UTF-16 units), each once."""
    return sorted(set(client_ids), key=lambda text: text.encode("utf-16-be", "surrogatepass"))

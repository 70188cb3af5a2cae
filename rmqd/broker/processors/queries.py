"""Messages by key, by unique key and by commit log offset (`QueryMessageProcessor.java`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from heapq import merge
from typing import Final

from rmqd.broker.channel import Channel
from rmqd.broker.processors.base import RequestProcessor, answers
from rmqd.broker.reply import Refusal, Reply
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.admin import QueryMessageRequestHeader, QueryMessageResponseHeader, ViewMessageRequestHeader
from rmqd.wire.messages.encode import decode_record
from rmqd.wire.messages.properties import KEYS, TAGS, UNIQ_KEY

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
MOST_FOR_UNIQUE_KEY: Final = 32  # Java: defaultQueryMaxNum
MOST: Final = 64  # Java: maxMsgsNumBatch
TAG_INDEX: Final = "T"
_AT_ONCE: Final = 1000  # records checked in one turn of the loop, in about a millisecond


class QueryMessageProcessor(RequestProcessor):
    """Answers queries by scanning a topic's records, newest first. An index would slow down every send."""

    @answers(RequestCode.QUERY_MESSAGE)
    async def query(self, channel: Channel, request: RemotingCommand) -> Reply:
        """QUERY_MESSAGE (12): the newest messages with a key, in the order in which they were stored."""
        header = QueryMessageRequestHeader.from_ext_fields(request.ext_fields)
        most = min(header.max_num, MOST)
        if request.ext_fields.get(UNIQUE_KEY_QUERY, "").lower() == "true":
            most = MOST_FOR_UNIQUE_KEY
        has_key = _tagged if header.index_type == TAG_INDEX else _keyed
        found = await self._find(header, has_key, most)
        if not found:
            nothing = QueryMessageResponseHeader(index_last_update_timestamp=0, index_last_update_phyoffset=0)
            remark = "can not find message, maybe time range not correct"
            return Reply(ResponseCode.QUERY_NOT_FOUND, remark, nothing.ext_fields())
        offset, stored_ms = self._broker.store.newest
        fields = QueryMessageResponseHeader(index_last_update_timestamp=stored_ms, index_last_update_phyoffset=offset)
        return Reply(ext_fields=fields.ext_fields(), body=b"".join(reversed(found)))

    @answers(RequestCode.VIEW_MESSAGE_BY_ID)
    def view(self, channel: Channel, request: RemotingCommand) -> Reply:
        """VIEW_MESSAGE_BY_ID (33): the message at a commit log offset."""
        offset = ViewMessageRequestHeader.from_ext_fields(request.ext_fields).offset
        record = self._broker.store.record(offset)
        if record is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return Reply(body=record)

    async def _find(
        self, header: QueryMessageRequestHeader, has_key: Callable[[Mapping[str, str], str], bool], most: int
    ) -> list[bytes]:
        store, key = self._broker.store, header.key.encode()
        found: list[bytes] = []
        queues = store.queues(header.topic).values()
        stored = (queue.newest_first(header.begin_timestamp, header.end_timestamp) for queue in queues)
        for looked_at, offset in enumerate(merge(*stored, reverse=True)):
            if len(found) >= most:
                break
            if looked_at % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            record = store.record(offset)  # None if retention deleted it between two turns
            if record is not None and key in record and has_key(decode_record(record).properties, header.key):
                found.append(record)
        return found


def _keyed(properties: Mapping[str, str], key: str) -> bool:
    return properties.get(UNIQ_KEY) == key or key in properties.get(KEYS, "").split(" ")


def _tagged(properties: Mapping[str, str], tag: str) -> bool:
    return properties.get(TAGS) == tag

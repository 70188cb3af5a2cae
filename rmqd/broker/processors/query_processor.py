"""Requests about single messages: queries by key, unique key or commit log offset, and recalls.

Java: `QueryMessageProcessor`, `RecallMessageProcessor`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from heapq import merge
from typing import Final

from rmqd.broker.peer_channel import NO_CODE, Channel, Refusal, Reply
from rmqd.broker.processors.processor_base import RequestProcessor, answers
from rmqd.broker.processors.send_processor import REGION
from rmqd.broker.schedule import delete_key
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import ProtocolError
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.send_headers import RecallMessageRequestHeader
from rmqd.wire.headers.topic_headers import QueryMessageRequestHeader, ViewMessageRequestHeader
from rmqd.wire.lite_topic import RecallHandle
from rmqd.wire.messages import properties as names
from rmqd.wire.messages.decode import stored_properties
from rmqd.wire.messages.encode import StoredMessage

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
MAX_FOR_UNIQUE_KEY: Final = 32  # Java: defaultQueryMaxNum
MAX_FOUND: Final = 64  # Java: maxMsgsNumBatch
TAG_INDEX: Final = "T"
_AT_ONCE: Final = 1000  # records checked in one turn of the loop, in about a millisecond
_TAG: Final = "_RECALL_TAG_"
_FIELDS: Final = {names.MSG_REGION: REGION}
"""Ext fields of all responses to recalls, including refusals."""


class QueryProcessor(RequestProcessor):
    """The processor of queries and recalls. A query scans a topic's records, because an index would slow down sends.

    A recall is also a timer message, due in the same second as the message that it recalls.
    """

    @answers(RequestCode.QUERY_MESSAGE)
    async def query(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer QUERY_MESSAGE (12) with the newest messages that have a key, in order of storage."""
        header = QueryMessageRequestHeader.from_ext_fields(request.ext_fields)
        most = min(header.max_num, MAX_FOUND)
        if request.ext_fields.get(UNIQUE_KEY_QUERY, "").lower() == "true":
            most = MAX_FOR_UNIQUE_KEY
        has_key = _tagged if header.index_type == TAG_INDEX else _keyed
        found = await self._find(header, has_key, most)
        if not found:
            remark = "can not find message, maybe time range not correct"
            return Reply(ResponseCode.QUERY_NOT_FOUND, remark, _index_progress(0, 0))
        return Reply(ext_fields=_index_progress(*self._broker.store.newest), body=b"".join(reversed(found)))

    @answers(RequestCode.VIEW_MESSAGE_BY_ID)
    def view(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer VIEW_MESSAGE_BY_ID (33) with the message at a commit log offset."""
        offset = ViewMessageRequestHeader.from_ext_fields(request.ext_fields).offset
        record = self._broker.store.record(offset)
        if record is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return Reply(body=record)

    @answers(RequestCode.RECALL_MESSAGE)
    def recall(self, channel: Channel, request: RemotingCommand) -> Reply:
        """RECALL_MESSAGE (370): recall a timer message. As in RocketMQ, a missing message is not an error."""
        header, broker = RecallMessageRequestHeader.from_ext_fields(request.ext_fields), self._broker
        if not broker.settings.recallMessageEnable:
            raise _failed(ResponseCode.NO_PERMISSION, "operation is forbidden")
        if broker.topics.get(header.topic) is None:
            raise _failed(ResponseCode.TOPIC_NOT_EXIST, f"the topic[{header.topic}] not exist")
        handle, now_ms = self._handle(header), broker.now_ms()
        properties = {
            names.TAGS: _TAG,
            names.TIMER_DEL_UNIQKEY: delete_key(handle.topic, handle.msg_id, broker.settings),
            names.UNIQ_KEY: handle.msg_id,
            names.TIMER_DELIVER_MS: str(handle.deliver_at_ms),
            names.BORN_TIMESTAMP: str(now_ms),
        }
        if header.producer_group is not None:
            properties[names.PRODUCER_GROUP] = header.producer_group
        broker.schedule.put(
            StoredMessage(
                topic=handle.topic, body=b"0", born_timestamp=now_ms, born_host=channel.address, properties=properties
            )
        )
        return Reply(remark=NO_CODE, ext_fields={**_FIELDS, "msgId": handle.msg_id})

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
            if record is not None and key in record and has_key(stored_properties(record), header.key):
                found.append(record)
        return found

    def _handle(self, header: RecallMessageRequestHeader) -> RecallHandle:
        """Return the handle of a recall. Raises Refusal if it is invalid, or its delivery time has passed."""
        broker = self._broker
        try:
            handle = RecallHandle.parse(header.recall_handle)
        except ProtocolError:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid", _FIELDS) from None
        if handle.topic != header.topic:
            raise _failed(ResponseCode.ILLEGAL_OPERATION, "topic not match")
        if handle.broker_name != broker.name:
            raise _failed(ResponseCode.ILLEGAL_OPERATION, "broker service not available")
        if not 0 < handle.deliver_at_ms - broker.now_ms() < broker.settings.timerMaxDelaySec * 1000:
            raise _failed(ResponseCode.ILLEGAL_OPERATION, "timestamp invalid")
        return handle


def _keyed(properties: Mapping[str, str], key: str) -> bool:
    return properties.get(names.UNIQ_KEY) == key or key in properties.get(names.KEYS, "").split(" ")


def _tagged(properties: Mapping[str, str], tag: str) -> bool:
    return properties.get(names.TAGS) == tag


def _index_progress(commit_log_offset: int, store_timestamp: int) -> dict[str, str]:
    """Return ext fields about the last message in the key index. This broker has no index: use the newest message."""
    return {"indexLastUpdateTimestamp": str(store_timestamp), "indexLastUpdatePhyoffset": str(commit_log_offset)}


def _failed(code: ResponseCode, why: str) -> Refusal:
    return Refusal(code, f"recall failed, {why}", _FIELDS)

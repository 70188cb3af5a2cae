"""All processors of a broker, in one list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rmqd.broker.processors.ack_processor import AckProcessor
from rmqd.broker.processors.assignment_processor import QueryAssignmentProcessor
from rmqd.broker.processors.client_processor import (
    ClientConfigProcessor,
    ClientManageProcessor,
    ConnectionsProcessor,
    ConsumerManageProcessor,
)
from rmqd.broker.processors.group_processor import GroupAdminProcessor, OffsetAdminProcessor
from rmqd.broker.processors.lite_processor import LiteProcessor, LockProcessor
from rmqd.broker.processors.pop_polling import PopPollingProcessor
from rmqd.broker.processors.pop_processor import PopMessageProcessor
from rmqd.broker.processors.pull_processor import PullMessageProcessor
from rmqd.broker.processors.query_processor import QueryMessageProcessor, RecallProcessor
from rmqd.broker.processors.send_processor import SendBackProcessor, SendMessageProcessor
from rmqd.broker.processors.stats_processor import OperatorProcessor, RuntimeProcessor, StatsProcessor
from rmqd.broker.processors.topic_processor import QueueEndsProcessor, StaticTopicProcessor, TopicAdminProcessor

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController
    from rmqd.broker.peer_channel import Processors


ALL = (
    AckProcessor,
    ClientConfigProcessor,
    ClientManageProcessor,
    ConnectionsProcessor,
    ConsumerManageProcessor,
    GroupAdminProcessor,
    LiteProcessor,
    LockProcessor,
    OffsetAdminProcessor,
    OperatorProcessor,
    PopMessageProcessor,
    PopPollingProcessor,
    PullMessageProcessor,
    QueryAssignmentProcessor,
    QueryMessageProcessor,
    QueueEndsProcessor,
    RecallProcessor,
    RuntimeProcessor,
    SendBackProcessor,
    SendMessageProcessor,
    StaticTopicProcessor,
    StatsProcessor,
    TopicAdminProcessor,
)


def broker_processors(broker: BrokerController) -> Iterator[Processors]:
    """Yield the processors of all request codes, one table for each kind of processor."""
    return (kind(broker).processors() for kind in ALL)

"""All processors of a broker, in one list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rmqd.broker.processors.acks import AckProcessor
from rmqd.broker.processors.assignment import QueryAssignmentProcessor
from rmqd.broker.processors.client_config import ClientConfigProcessor
from rmqd.broker.processors.clients import ClientManageProcessor
from rmqd.broker.processors.connections import ConnectionsProcessor
from rmqd.broker.processors.consumers import ConsumerManageProcessor
from rmqd.broker.processors.group_admin import GroupAdminProcessor
from rmqd.broker.processors.lite import LiteProcessor
from rmqd.broker.processors.locks import LockProcessor
from rmqd.broker.processors.offset_admin import OffsetAdminProcessor
from rmqd.broker.processors.operators import OperatorProcessor
from rmqd.broker.processors.pop import PopMessageProcessor
from rmqd.broker.processors.pop_polling import PopPollingProcessor
from rmqd.broker.processors.pull import PullMessageProcessor
from rmqd.broker.processors.queries import QueryMessageProcessor
from rmqd.broker.processors.queue_ends import QueueEndsProcessor
from rmqd.broker.processors.recall import RecallProcessor
from rmqd.broker.processors.runtime import RuntimeProcessor
from rmqd.broker.processors.schedule import ScheduleProcessor
from rmqd.broker.processors.send import SendMessageProcessor
from rmqd.broker.processors.send_back import SendBackProcessor
from rmqd.broker.processors.static_topics import StaticTopicProcessor
from rmqd.broker.processors.stats import StatsProcessor
from rmqd.broker.processors.topic_admin import TopicAdminProcessor

if TYPE_CHECKING:
    from rmqd.broker.channel import Processors
    from rmqd.broker.controller import BrokerController

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
    ScheduleProcessor,
    SendBackProcessor,
    SendMessageProcessor,
    StaticTopicProcessor,
    StatsProcessor,
    TopicAdminProcessor,
)


def broker_processors(broker: BrokerController) -> Iterator[Processors]:
    """Yield the processors of all request codes, one table for each kind of processor."""
    return (kind(broker).processors() for kind in ALL)

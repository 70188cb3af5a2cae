"""All processors of a broker, in one list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rmqd.broker.processors.ack_processor import AckProcessor
from rmqd.broker.processors.assignment_processor import QueryAssignmentProcessor
from rmqd.broker.processors.client_processor import ClientProcessor
from rmqd.broker.processors.group_processor import GroupProcessor
from rmqd.broker.processors.lite_processor import LiteProcessor
from rmqd.broker.processors.pop_polling import PopPollingProcessor
from rmqd.broker.processors.pop_processor import PopMessageProcessor
from rmqd.broker.processors.pull_processor import PullMessageProcessor
from rmqd.broker.processors.query_processor import QueryProcessor
from rmqd.broker.processors.send_processor import SendProcessor
from rmqd.broker.processors.stats_processor import StatsProcessor
from rmqd.broker.processors.topic_processor import QueueEndsProcessor, TopicProcessor

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController
    from rmqd.broker.peer_channel import Processors


ALL = (
    AckProcessor,
    ClientProcessor,
    GroupProcessor,
    LiteProcessor,
    PopMessageProcessor,
    PopPollingProcessor,
    PullMessageProcessor,
    QueryAssignmentProcessor,
    QueryProcessor,
    QueueEndsProcessor,
    SendProcessor,
    StatsProcessor,
    TopicProcessor,
)


def broker_processors(broker: BrokerController) -> Iterator[Processors]:
    """Yield the processors of all request codes, one table for each kind of processor."""
    return (kind(broker).processors() for kind in ALL)

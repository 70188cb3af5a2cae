"""SQL92 conditions compared with a real broker: it selects the same messages, and rejects the same conditions."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from typing import Any

from rmqd.broker.filter.sql_condition import ExpressionError, compile_condition
from rmqd.wire.bodies.heartbeat_data import CheckClientRequestBody, SubscriptionData
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.properties import format_properties
from tests.nightly.broker.conditions import LITERALS, NAMES, VALUES, WORDS, evaluate
from tests.rocketmq import RealCluster, rpc

CONDITIONS = int(os.environ.get("RMQD_TEST_CONDITIONS", "600"))
SEED = int(os.environ.get("RMQD_TEST_SEED", "92"))
PULL, CHECK = 11, 46


class Inventor:
    """Generates random conditions, most of them valid."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def properties(self) -> dict[str, str]:
        """Return some properties with unusual values."""
        names = [name for name in NAMES if self.random.random() < 0.7]
        return {name: self.random.choice(VALUES) for name in names}

    def condition(self) -> str:
        """Return a condition. Every fifth has an extra, missing or misplaced word."""
        words = list(self._condition(self.random.randint(0, 3)))
        if self.random.random() < 0.2:
            at = self.random.randrange(len(words))
            words[at : at + self.random.randint(0, 1)] = self.random.choices(WORDS, k=self.random.randint(0, 1))
        return " ".join(words)

    def _condition(self, depth: int) -> Iterator[str]:
        kind = self.random.randrange(10)
        if depth and kind < 6:
            if kind == 0:
                yield "NOT"
            if self.random.random() < 0.5:
                yield from ("(", *self._condition(depth - 1), ")")
            else:
                yield from self._condition(depth - 1)
            if kind > 1:
                yield self.random.choice(("AND", "OR", "and", "Or"))
                yield from self._condition(depth - 1)
            return
        yield from self._simple(kind)

    def _simple(self, kind: int) -> Iterator[str]:
        choose, maybe_not = self.random.choice, self.random.choice((["NOT"], []))
        if kind < 5:
            yield from self._operand()
            yield choose(("=", "<>", "<", ">", "<=", ">="))
            yield from self._operand()
        elif kind < 6:
            yield from (*self._operand(), "IS", *maybe_not, "NULL")
        elif kind < 7:
            yield from (*self._operand(), *maybe_not, "BETWEEN", *self._operand(), "AND", *self._operand())
        elif kind < 8:
            texts = ", ".join(repr(choose(VALUES)).replace('"', "'") for _ in range(self.random.randint(1, 4)))
            yield from (choose(NAMES), *maybe_not, "IN", "(", texts, ")")
        elif kind < 9:
            yield from (*self._operand(), *maybe_not, choose(("CONTAINS", "STARTSWITH", "endswith")))
            yield choose(("'a'", "'1'", "''", "'bc'", "''''", "'é'"))
        else:
            yield from self._operand()

    def _operand(self) -> Iterator[str]:
        if self.random.random() < 0.1:
            yield self.random.choice("+-")
        yield self.random.choice(NAMES if self.random.random() < 0.6 else LITERALS)


def test_conditions_have_the_same_result_on_a_real_broker(rocketmq: RealCluster, topic: str) -> None:
    inventor = Inventor(SEED)
    host, port = rocketmq.broker.address.rsplit(":", 1)
    wrong = matched = 0
    with socket.create_connection((host, int(port)), timeout=10) as link:
        for number in range(32):  # as many as one response holds
            store(link, topic, number, inventor.properties())
        everything = pulled(link, topic, "TRUE")
        assert len(everything) == 32
        for _ in range(CONDITIONS):
            condition = inventor.condition()
            assert is_valid(condition) is is_valid_for_the_broker(link, topic, condition), condition
            if not is_valid(condition):
                wrong += 1
                continue
            wanted = {body for body, message in everything.items() if evaluate(condition, message.properties) is True}
            matched += bool(wanted)
            assert pulled(link, topic, condition).keys() == wanted, condition
    assert min(wrong, matched) > CONDITIONS / 10  # otherwise the conditions test too little
    print(f"{CONDITIONS} conditions, {wrong} wrong, {matched} with messages; seed {SEED}")


def is_valid(condition: str) -> bool:
    try:
        compile_condition(condition)
    except ExpressionError:
        return False
    return True


def is_valid_for_the_broker(link: socket.socket, topic: str, condition: str) -> bool:
    subscription = SubscriptionData(topic, condition, expression_type="SQL92")
    body = CheckClientRequestBody("client", "g", subscription).to_json()
    return rpc.exchange(link, CHECK, {}, body=body, accepted=(0, 23)).code == 0


def store(link: socket.socket, topic: str, number: int, properties: dict[str, str]) -> None:
    fields: dict[str, Any] = dict.fromkeys(("queueId", "sysFlag", "bornTimestamp", "flag", "reconsumeTimes"), 0)
    fields |= {"producerGroup": "p", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4}
    fields["properties"] = format_properties(properties)
    rpc.exchange(link, rpc.SEND_MESSAGE, fields, body=b"%d" % number, accepted=rpc.STORED)


def pulled(link: socket.socket, topic: str, condition: str) -> dict[bytes, Message]:
    """Return the messages of queue 0 that the broker finds, by body."""
    fields: dict[str, Any] = dict.fromkeys(("queueId", "queueOffset", "commitOffset", "suspendTimeoutMillis"), 0)
    fields |= {"consumerGroup": "g", "topic": topic, "maxMsgNums": 32, "sysFlag": 4, "subVersion": 0}
    fields |= {"subscription": condition, "expressionType": "SQL92"}
    answer = rpc.exchange(link, PULL, fields, accepted=(0, 20))
    return {message.body: message for message in decode_messages(answer.body, MessageQueue(topic, "b", 0)).messages}

"""The handler `kafka`, and its client's settings. A message is acknowledged when Kafka has confirmed its record."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from rmqd import Batch, Message
from rmqd_handlers.away import ON_INVALID, RETRY_FOR, OnInvalid, acknowledge_written, mark_waiting, refuse, valid
from rmqd_handlers.kafka.kafka_producer import (
    KafkaRecord,
    MessageRecord,
    RecordFailure,
    Topic,
    is_missing,
    records_to_repeat,
)
from rmqd_handlers.message_values import MessageValue, ParsedMessage, as_bytes
from rmqd_handlers.option_kinds import DurationSeconds, HandlerOptions, option, require

if TYPE_CHECKING:
    from rmqd_handlers.kafka.kafka_producer import KafkaProducer


RESERVED_SETTINGS: Final = {
    "bootstrap.servers": "bootstrap_servers",
    "metadata.broker.list": "bootstrap_servers",
    "delivery.timeout.ms": "retry_for",
    "message.timeout.ms": "retry_for",
    "enable.idempotence": None,
    "acks": None,
    "request.required.acks": None,
    "message.send.max.retries": None,
    "retries": None,
    "transactional.id": None,
}
"""Settings that the option `client` must not contain, with the option to use instead; None if no option changes it."""

DEFAULTS: Final[Mapping[str, Any]] = {
    "client.id": "rmqd",
    # as in Kafka's Java clients, so that all clients assign a key to the same partition
    "partitioner": "murmur2_random",
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 2000,
    # critical errors only: the handler reports failed connections, and the client would log every attempt
    "log_level": 2,
}


def client_settings(servers: str, retry_for_seconds: float, given: Mapping[str, SecretStr]) -> dict[str, Any]:
    """Return the settings of an idempotent client, whose records are confirmed by all in-sync replicas."""
    return {
        **DEFAULTS,
        **{name: value.get_secret_value() for name, value in given.items()},
        "bootstrap.servers": servers,
        "enable.idempotence": True,
        "acks": "all",
        "delivery.timeout.ms": round(retry_for_seconds * 1000),
    }


def _as_setting(value: object) -> object:
    """Convert a number or boolean from YAML to the text that the client expects."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _not_ours(settings: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name in settings:
        if name in RESERVED_SETTINGS:
            instead = (
                f"use the option {RESERVED_SETTINGS[name]}" if RESERVED_SETTINGS[name] else "the handler relies on it"
            )
            raise ValueError(f"{name} cannot be set here: {instead}")
    return settings


ClientSettings = Annotated[
    dict[str, Annotated[SecretStr, BeforeValidator(_as_setting, json_schema_input_type=str | int | float | bool)]],
    AfterValidator(_not_ours),
]


logger = logging.getLogger(__name__)

START_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.2  # interval of checks whether the brokers have created the topic


class NotConfirmedError(Exception):
    """Kafka has not confirmed records of a batch. Their messages wait in their queue."""


class TopicMissingError(Exception):
    """The topic is not usable, or it does not exist and the brokers do not create it."""


class Kafka:
    """Writes each message as a record of an Apache Kafka topic. Records with the same key keep their order."""

    class Options(HandlerOptions):
        bootstrap_servers: str = Field(
            description="some of the brokers: kafka-1:9092,kafka-2:9092; they know the others", min_length=1
        )
        topic: Topic = Field(
            description="the topic, or a template with values of the message in braces: orders, rmq.{topic}, "
            "orders-{properties.region}"
        )
        key: Annotated[str, Field(pattern=r"^(keys|sharding_key|none|property:\S(.*\S)?)$")] = option(
            "keys",
            "the key of a record: keys, sharding_key, property:NAME or none; records with the same key go "
            "to one partition, in order; records without a key to any partition",
        )
        value: MessageValue = option(
            "body", "the value of a record: a JSON path into the body, a field such as body, or properties.NAME"
        )
        headers: dict[str, MessageValue] | None = option(
            None,
            "each header of a record and its value; default: the message's own properties by "
            "name, including KEYS and TAGS, and its msg_id as UNIQ_KEY",
        )
        client: ClientSettings = option(
            {},
            "client settings with librdkafka's names, such as {security.protocol: SASL_SSL, "
            "sasl.mechanism: SCRAM-SHA-512, compression.type: zstd}",
        )
        on_invalid: OnInvalid = ON_INVALID
        retry_for: Annotated[DurationSeconds, Field(ge=1)] = RETRY_FOR

    def __init__(self, options: Options) -> None:
        require("confluent_kafka", "kafka")
        self._options = options
        self._settings = client_settings(options.bootstrap_servers, options.retry_for, options.client)
        self._producer: KafkaProducer
        self._one_by_one: KafkaProducer | None = None

    async def start(self) -> None:
        """Query the brokers now: a wrong setting, or an unavailable Kafka, fails the start instead of each message."""
        from rmqd_handlers.kafka.kafka_producer import KafkaProducer

        self._producer = KafkaProducer(self._settings)
        try:
            await self._look_up()
        except BaseException:
            await self._producer.close()
            raise

    async def stop(self) -> None:
        await self._producer.close()
        if self._one_by_one is not None:
            await self._one_by_one.close()

    async def handle(self, batch: Batch) -> None:
        if written := valid(batch, self._record, self._options.on_invalid):
            waiting, reason = await self._write(batch, written)
            acknowledge_written(batch, [message for message, _ in waiting])
            if waiting:
                logger.warning("handler.not_confirmed", extra={"messages": len(waiting), "reason": reason})
                failed = NotConfirmedError(reason)
                mark_waiting(failed)
                raise failed

    def _record(self, opened: ParsedMessage) -> KafkaRecord:
        one, message = self._options, opened.message
        value = as_bytes(one.value.required(opened))
        match one.key:
            case "none":
                key = None
            case "keys":
                key = message.keys
            case "sharding_key":
                key = message.properties.get("__SHARDINGKEY")
            case _:
                key = message.properties.get(one.key.removeprefix("property:"))
        headers: dict[str, Any] = {**message.own_properties, "UNIQ_KEY": message.msg_id}
        if one.headers is not None:
            values = {name: of(opened) for name, of in one.headers.items()}
            headers = {name: as_bytes(value) for name, value in values.items() if value is not None}
        topic, key_bytes = one.topic.of(opened), key.encode() if key else None
        return KafkaRecord(topic, key_bytes, value, list(headers.items()), message.born_timestamp)

    async def _write(self, batch: Batch, written: list[MessageRecord]) -> tuple[Sequence[MessageRecord], str]:
        """Write the batch. Returns the unconfirmed records, whose messages must wait, and the reason."""
        failures = await self._producer.send([record for _, record in written])
        unknown = records_to_repeat(written, failures, lambda failure: not failure.is_refusal)
        reason = self._not_confirmed(self._producer, failures) if unknown else ""
        waiting = {id(message) for message, _ in unknown}
        rest = [pair for pair in zip(written, failures, strict=True) if id(pair[0][0]) not in waiting]
        for (message, record), failure in rest:
            if failure is not None and not failure.is_sent:
                self._refuse(batch, message, record, failure)
        failed = [failure for _, failure in rest]
        if again := records_to_repeat([one for one, _ in rest], failed, lambda one: one.is_sent and one.is_refusal):
            more, why = await self._write_one_by_one(batch, again)
            return [*unknown, *more], reason or why
        return unknown, reason

    async def _write_one_by_one(
        self, batch: Batch, written: list[MessageRecord]
    ) -> tuple[Sequence[MessageRecord], str]:
        """Send each record in a separate request, because one bad record fails its whole request."""
        from rmqd_handlers.kafka.kafka_producer import KafkaProducer

        if self._one_by_one is None:
            self._one_by_one = KafkaProducer(self._settings | {"batch.num.messages": 1})
        for place, (message, record) in enumerate(written):
            failures = await self._one_by_one.send([record])
            [failure] = failures
            if failure is not None and not failure.is_refusal:
                # the remaining records are not sent, because each of them might wait equally long for a response
                return written[place:], self._not_confirmed(self._one_by_one, failures)
            if failure is not None:
                self._refuse(batch, message, record, failure)
        return (), ""

    def _not_confirmed(self, producer: KafkaProducer, failures: Sequence[RecordFailure | None]) -> str:
        reasons = {str(failure) for failure in failures if failure is not None and not failure.is_refusal}
        count = sum(failure is not None for failure in failures)
        said = f"; the client reports: {producer.trouble}" if producer.trouble else ""
        return (
            f"Kafka at {self._options.bootstrap_servers} has not confirmed {count} of {len(failures)} records: "
            f"{', '.join(sorted(reasons))}{said}"
        )

    def _refuse(self, batch: Batch, message: Message, record: KafkaRecord, why: RecordFailure) -> None:
        reason = f"Kafka refused the record for {record.topic}, with a value of {len(record.value)} bytes: {why}"
        refuse(batch, message, reason, self._options.on_invalid)

    async def _look_up(self) -> None:
        """Check that the topic exists or is created. Raises TopicMissingError, or KafkaException without a response."""
        until = time.monotonic() + START_SECONDS
        name = self._options.topic.fixed
        while (error := await self._producer.look_up(name, START_SECONDS)) is not None:
            if not error.retriable() and not is_missing(error):
                raise TopicMissingError(f"the topic {name} of Kafka is not usable: {error.str()}")
            if time.monotonic() > until:
                raise TopicMissingError(
                    f"Kafka at {self._options.bootstrap_servers} has no topic {name} and does not create it; run "
                    f"kafka-topics.sh --bootstrap-server {self._options.bootstrap_servers} --create --topic {name}"
                )
            await asyncio.sleep(POLL_SECONDS)

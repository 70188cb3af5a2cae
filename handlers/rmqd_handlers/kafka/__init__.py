"""`kafka`: writes messages as records of a topic, with an idempotent producer."""

from rmqd_handlers.kafka.handler import Kafka

__all__ = ["Kafka"]

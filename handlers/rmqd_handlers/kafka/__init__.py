"""`kafka`: writes messages as records of a topic, with an idempotent producer.

handler   the options; a batch is acknowledged when all of its records are
records   converts a message to topic, key, value and headers of a record
producer  the client and its thread; the result of each record
answers   which errors concern the record itself, and which records to send again
settings  the client's settings, including fixed ones
"""

from .handler import Kafka

__all__ = ["Kafka"]

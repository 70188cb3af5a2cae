"""`kafka`: messages as records of a topic, by an idempotent producer.

handler   the options; a batch is acknowledged when all of its records are
records   what a message becomes: topic, key, value and headers of a record
producer  the client and its thread; what became of each record
answers   which of their errors are about a record itself, and what is sent once more
settings  the client's own settings, and those that are not for the options
"""

from .handler import Kafka

__all__ = ["Kafka"]

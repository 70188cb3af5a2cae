"""`celery`: sends messages as tasks to Celery.

handler  the options; a batch is acknowledged when the broker has all of its tasks
sending  the connections to Celery's broker
tasks    converts a message to the arguments and id of a task
"""

from .handler import Celery

__all__ = ["Celery"]

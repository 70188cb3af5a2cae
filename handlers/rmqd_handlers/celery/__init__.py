"""`celery`: messages as tasks of Celery.

handler  the options; a batch is acknowledged when the broker has all of its tasks
sending  the connections to Celery's broker, and what is sent over one
tasks    what a message becomes: the arguments of a task, and its id
"""

from .handler import Celery

__all__ = ["Celery"]

"""Errors around a real RocketMQ."""

from __future__ import annotations


class RocketMqUnavailable(Exception):
    """Java, Maven or the jars are missing; the text says what to install."""


class NotEmbeddedError(Exception):
    """The embedded broker, one process with one broker, does not support the requested cluster."""


class ClusterError(Exception):
    """An operation of the cluster, or of one of its nodes, failed."""


class NotRegisteredError(ClusterError):
    """The broker runs, but the name server does not know it."""

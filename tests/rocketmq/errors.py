"""What can go wrong around a real RocketMQ."""

from __future__ import annotations


class RocketMqUnavailable(Exception):
    """Java, Maven or the jars can't be had here; the text says what to install."""


class NotEmbeddedError(Exception):
    """The embedded broker is one process with one broker, and cannot be what was asked for."""


class ClusterError(Exception):
    """The cluster, or one of its nodes, did not do what was asked."""


class NotRegisteredError(ClusterError):
    """The broker runs, but the name server does not know it."""

"""rmqd runs Apache RocketMQ consumer groups declared in YAML.

What handlers and offset stores need is here, and nothing else: `Batch`, `Message`, `MessageQueue`, `Retry`,
`DeadLetter`, `Suspend`, `AlreadyHandled`; `handler`, `Depends`, `offset_connection` for typed handlers; and `Progress`,
`StoredQueue` and `OffsetStoreError` for stores.

The packages, from the top: `cli` the commands; `demo`, `testing` and `spark`; `daemon` the process; `plugins` and
`process`; `config`; `consumer` the engine of one group; `client` the connections to RocketMQ; `wire` bytes to values
and back. Imports point down only. `broker` is the embedded RocketMQ. docs/architecture.md shows the way through them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqd.handler_api import AlreadyHandled, Batch, DeadLetter, Retry, Suspend
    from rmqd.offset_stores import OffsetStoreError, Progress, StoredQueue, offset_connection
    from rmqd.typed.decorator import Depends, handler
    from rmqd.wire.message_queue import MessageQueue
    from rmqd.wire.messages.message import Message

__all__ = [
    "AlreadyHandled",
    "Batch",
    "DeadLetter",
    "Depends",
    "Message",
    "MessageQueue",
    "OffsetStoreError",
    "Progress",
    "Retry",
    "StoredQueue",
    "Suspend",
    "__version__",
    "handler",
    "offset_connection",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Loaded at the first use: every command imports this package, and help needs none of them.
    if name in ("AlreadyHandled", "Batch", "DeadLetter", "Retry", "Suspend"):
        import rmqd.handler_api

        return getattr(rmqd.handler_api, name)
    if name in ("Depends", "handler"):
        import rmqd.typed.decorator

        return getattr(rmqd.typed.decorator, name)
    if name in ("OffsetStoreError", "Progress", "StoredQueue", "offset_connection"):
        import rmqd.offset_stores

        return getattr(rmqd.offset_stores, name)
    if name in ("Message", "MessageQueue"):
        import rmqd.wire.messages.message

        return getattr(rmqd.wire.messages.message, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

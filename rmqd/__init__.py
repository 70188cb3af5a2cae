"""rmqd runs Apache RocketMQ consumer groups declared in YAML.

Handlers need `Batch`, `Message`, `MessageQueue`, `Retry`, `DeadLetter`, `Suspend` and `AlreadyHandled`; typed handlers
also need `handler` and `Depends`. Programs that poll use `PullConsumer` and `SyncPullConsumer`. Two more modules are
public: `rmqd.offset_stores` and `rmqd.testing`.

The main packages, in layers from the top: `cli` has the commands; `operate` inspects and changes groups without a
daemon; `daemon` is the process that runs groups; `plugins` finds handlers; `consumer` is the engine of one group;
`client` has the connections to RocketMQ; `wire` converts bytes to values and back. No package imports a higher layer.
`broker` is the embedded RocketMQ. docs/architecture.md describes all packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqd.handler_api.batch import AlreadyHandled, Batch, DeadLetter, Retry, Suspend
    from rmqd.handler_api.typed.signatures import Depends, handler
    from rmqd.operate.pull_mode.pull_consumer import PullConsumer
    from rmqd.operate.pull_mode.sync_pull_consumer import SyncPullConsumer
    from rmqd.version import __version__
    from rmqd.wire.message_queue import MessageQueue
    from rmqd.wire.messages.message import Message

__all__ = [
    "AlreadyHandled",
    "Batch",
    "DeadLetter",
    "Depends",
    "Message",
    "MessageQueue",
    "PullConsumer",
    "Retry",
    "Suspend",
    "SyncPullConsumer",
    "__version__",
    "handler",
]


def __getattr__(name: str) -> Any:
    # loaded at first use: every command imports this package, and `rmqd --help` does not need these names
    if name in ("AlreadyHandled", "Batch", "DeadLetter", "Retry", "Suspend"):
        import rmqd.handler_api.batch

        return getattr(rmqd.handler_api.batch, name)
    if name in ("Depends", "handler"):
        import rmqd.handler_api.typed.signatures

        return getattr(rmqd.handler_api.typed.signatures, name)
    if name in ("Message", "MessageQueue"):
        import rmqd.wire.messages.message

        return getattr(rmqd.wire.messages.message, name)
    if name in ("PullConsumer", "SyncPullConsumer"):
        import rmqd.operate.pull_mode.sync_pull_consumer

        return getattr(rmqd.operate.pull_mode.sync_pull_consumer, name)
    if name == "__version__":
        import rmqd.version

        return rmqd.version.__version__
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

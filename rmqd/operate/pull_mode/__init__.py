"""Consumers for programs that poll for messages: `PullConsumer` and `SyncPullConsumer`."""

"""Programs that poll for messages: `PullConsumer` and `SyncPullConsumer`."""

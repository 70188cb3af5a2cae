"""Pull mode: a program subscribes to topics or assigns queues, and polls their messages. rmqd calls no handler.

A subscribed consumer is a PushConsumer with a PollService. So it shares queues, obeys flow control and hands queues
over like every member. A leaf: only programs use this package.

    settings            Settings: the keywords of a consumer, checked like the configuration's keys
    pull_consumer       PullConsumer
    sync_pull_consumer  SyncPullConsumer: the same without `await`
"""

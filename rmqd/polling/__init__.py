"""Pull mode: a program subscribes to topics or assigns queues, and polls, in place of a handler that is called.

A consumer that subscribes is a PushConsumer whose service is a PollService, so it shares queues, obeys flow control
and hands queues over as every member. A leaf: only programs use this room.

    settings            Settings: the keywords of a consumer, checked as the configuration's keys
    pull_consumer       PullConsumer
    sync_pull_consumer  SyncPullConsumer: the same without `await`
"""

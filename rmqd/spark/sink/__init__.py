"""Writing to topics: the format `rocketmq` as a sink."""

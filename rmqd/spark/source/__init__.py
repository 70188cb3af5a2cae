"""Reading topics: the format `rocketmq`, from its options to the record batches of a task."""

"""A group's handler on executors: ranges of queues in, what became of them out."""

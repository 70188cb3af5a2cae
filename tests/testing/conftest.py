"""The kit's own fixtures, in the place of the suite's `rocketmq`, which is a real one."""

from rmqd.testing.plugin import make_batch, make_message, rocketmq, run_handler

__all__ = ["make_batch", "make_message", "rocketmq", "run_handler"]

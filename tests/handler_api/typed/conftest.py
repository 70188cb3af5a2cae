"""The fixture `rocketmq` of `rmqd.testing`, in place of a real RocketMQ."""

from __future__ import annotations

from tests.testing.conftest import rocketmq

__all__ = ["rocketmq"]

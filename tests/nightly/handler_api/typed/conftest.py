"""The fixtures of `rmqd.testing`, instead of a real RocketMQ."""

from __future__ import annotations

from tests.testing.conftest import rocketmq

__all__ = ["rocketmq"]

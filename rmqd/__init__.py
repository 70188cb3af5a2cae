"""rmqd: an Apache RocketMQ consumer daemon."""

__version__ = "0.1.0"

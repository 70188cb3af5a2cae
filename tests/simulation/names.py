"""The names of the topic, the group, the tags and the lanes."""

import zlib

TOPIC = "orders"
GROUP = "billing"
TAGS = "abc"
"""The tags; each message has one of them."""
LANE = "LANE"
"""The property by which a group with `order_by` orders messages."""


def lane_of(key: str) -> str:
    """Return the lane of the message with this key; empty for messages without an order."""
    lane = zlib.crc32(key.encode()) % 7
    return f"l{lane}" if lane else ""

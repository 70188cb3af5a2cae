"""The names of the topic, of the group, and of what has an order."""

import zlib

TOPIC = "orders"
GROUP = "billing"
TAGS = "abc"
"""Each message has one of these."""
LANE = "LANE"
"""The property whose messages keep their order, in a group with `order_by`."""


def lane_of(key: str) -> str:
    """The value of that property, of the message with this key: empty for some, which have no order."""
    lane = zlib.crc32(key.encode()) % 7
    return f"l{lane}" if lane else ""

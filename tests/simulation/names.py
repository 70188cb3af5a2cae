"""The names of the topic and of the group."""

TOPIC = "orders"
GROUP = "billing"
TAGS = "abc"
"""Each message has one of these."""

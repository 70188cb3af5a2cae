"""The events of a history. Each module has the events of one kind; a plan draws them by name.

- `registry`: `@happening`, and the table of all events.
- `members`: members join, leave, are killed and suspended; handlers hang, and stops are rushed.
- `network`: connections that break, hosts that cannot reach each other, frames that are lost.
- `brokers`: brokers that crash, are suspended, or are unreachable.
- `name_servers`: name servers that crash, are slow, or have old routes, and brokers that move.
- `slaves`: slaves that serve reads for a dead master, and slaves that are behind.
- `topics`: the topic grows, shrinks, and loses permissions.
- `operators`: offsets are reset, groups are paused, and their options change.
- `popping`: a group that pops is switched to pull and back, and its pop options change.
"""

from tests.simulation.happenings import brokers, members, name_servers, network, operators, popping, slaves, topics
from tests.simulation.happenings.registry import HAPPENINGS, Happening

__all__ = [
    "HAPPENINGS",
    "Happening",
    "brokers",
    "members",
    "name_servers",
    "network",
    "operators",
    "popping",
    "slaves",
    "topics",
]

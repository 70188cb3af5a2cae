"""What may happen in a history. Each module has the happenings of one kind; a plan draws them by their names.

- `registry`: `@happening`, and the table of all.
- `members`: members join, leave, are killed and suspended; handlers hang, and stops are rushed.
- `network`: connections that break, hosts that cannot reach each other, frames that are lost.
- `brokers`: brokers that crash, are suspended, and cannot be reached.
- `operators`: offsets are reset, groups are paused, and their options change.
"""

from tests.simulation.happenings import brokers, members, network, operators
from tests.simulation.happenings.registry import HAPPENINGS, Happening

__all__ = ["HAPPENINGS", "Happening", "brokers", "members", "network", "operators"]

"""Members of the group, on a host each.

- `handling`: the handler of a simulation, which fails, gives up and takes its time as drawn, and tells the ledger.
- `member`: a member as rmqd runs it: its own client and consumer.
"""

from tests.simulation.members.handling import HandlerFailed, Handling
from tests.simulation.members.member import Member

__all__ = ["HandlerFailed", "Handling", "Member"]

"""Members of the group, on a host each.

- `handling`: the handler of a simulation, which fails, gives up and takes its time as drawn, and tells the ledger.
- `member`: a member as rmqd runs it: its own client and consumer.
- `java_member`: a member as Java's client would be one, on a host of its own. Its parts, from the top: `java_consumer`
  (who has which queue), `java_queue` (pulls and handlers), `java_brokers` (requests).
- `options`: what the group is configured with.
- `home`: a machine of a broadcasting group, on which its members' offsets stay.
"""

from tests.simulation.members.handling import HandlerFailed, Handling
from tests.simulation.members.home import Home
from tests.simulation.members.java_member import JavaMember
from tests.simulation.members.member import Member

__all__ = ["HandlerFailed", "Handling", "Home", "JavaMember", "Member"]

"""Members of the group, each on a host.

- `handling`: the handler of a simulation, which fails, dead-letters and takes time as drawn, and reports to the ledger.
- `member`: a member as rmqd runs it, with its own client and consumer.
- `java_member`: a member that behaves like Java's client. Its parts, from the top: `java_consumer` (the queues that it
  owns), `java_queue` (pulls and handlers), `java_brokers` (requests).
- `options`: the group's configuration.
- `home`: a machine of a broadcasting group, which keeps its members' offsets.
"""

from tests.simulation.members.handling import HandlerFailed, Handling
from tests.simulation.members.home import Home
from tests.simulation.members.java_member import JavaMember
from tests.simulation.members.member import Member

__all__ = ["HandlerFailed", "Handling", "Home", "JavaMember", "Member"]

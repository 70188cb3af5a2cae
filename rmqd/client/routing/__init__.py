"""Routes of topics: the name servers to ask, their responses, and the addresses of brokers.

Reading a route never waits. While no name server answers, the last known routes stay. If a broker disappears from all
routes, its addresses stay for 65 s, because a restarted name server has no routes until brokers register again.
"""

"""Routes of topics: the name servers to ask, their responses, and the addresses of brokers.

Reading a route never waits. While no name server answers, the last known routes stay. The addresses of a broker that is
missing from all routes stay for a while, because a restarted name server has no routes.
"""

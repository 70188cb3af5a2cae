"""Routes of topics: the name servers to ask, their responses, and the addresses of brokers.

Reading a route never waits. While no name server answers, the last known routes stay. For a while, so do the addresses
of a broker that is missing from all routes, because a restarted name server has no routes.
"""

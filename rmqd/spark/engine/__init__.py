"""One group on Spark, seen from the driver: from its first heartbeat to its last commit.

The checkpoint owns the offsets, which are then committed to the brokers. A running query cannot be moved to other
offsets: if the group is moved, the query ends, and a new generation of the checkpoint begins. Calls into Spark block,
so they are made in threads.
"""

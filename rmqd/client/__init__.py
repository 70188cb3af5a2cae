"""Sockets: requests to name servers and brokers, routes, heartbeats, sending; one ClientInstance for a process.

No constructor starts a task: `ClientInstance.run` owns those that keep things up to date, and RemotingClient those of
its connections, until `close`. Every request has a deadline, and nothing waits for one broker to serve another. The
groups themselves are told what concerns them through GroupMembership; nothing here knows what consuming is.
"""

"""The client: connections to name servers and brokers. A process has one ClientInstance for each cluster.

Constructors start no tasks. `ClientInstance.run` owns the tasks that update addresses and routes and send heartbeats.
RemotingClient owns the tasks of its connections until `close`. Every request has a deadline, and a slow broker does not
delay requests to other brokers. The package does not consume messages. It passes brokers' requests and notifications to
the consumer groups, which implement `GroupMembership`.
"""

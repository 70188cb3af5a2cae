"""Connections to name servers and brokers. A process has one ClientInstance for each cluster.

Constructors start no tasks. `ClientInstance.run` owns the tasks that update addresses, routes and heartbeats.
RemotingClient owns the tasks of its connections until `close`. Every request has a deadline, and a slow broker does not
delay requests to others. Groups are notified through GroupMembership; this room knows nothing about consuming.

    instance       ClientInstance: connections shared by all groups; forwards brokers' requests to groups
    membership     GroupMembership: a group's interface to the client
    heartbeat      Heartbeat: sends the groups to every broker; tracks which brokers answer
    client_id      client ids, which identify the members of a group at brokers
    options        ClientOptions: addresses, keys, TLS
    coalesce       Coalesced: one call for all simultaneous callers
    group_lag      LagReader: the lag of a group, read without joining the group
    looks          operators' queries about a cluster's groups and topics
    resets         an operator's reset of a group: plan, requests, verification by the members
    pushed_resets  resets that brokers of 4.x push to members
    remoting       connections: requests and responses, deadlines, TLS, unreachable peers
    routing        name servers, routes, replicas
    api            one coroutine for each request
    sending        the producer, and message trace
"""

"""Connections to name servers and brokers; one ClientInstance for each cluster in a process.

No constructor starts a task: `ClientInstance.run` owns those that keep things up to date, and RemotingClient those of
its connections, until `close`. Every request has a deadline, and no broker delays requests to another one. Groups hear
of what concerns them through GroupMembership; nothing here knows what consuming is.

    instance       ClientInstance: what all groups share; which group a broker's request is for
    membership     GroupMembership: what the client asks of a group
    heartbeat      Heartbeat: tells every broker which groups are here; sees which brokers answer
    client_id      how brokers tell the members of a group apart
    options        ClientOptions: addresses, keys, TLS
    coalesce       Coalesced: one call for all who ask at the same time
    group_lag      LagReader: how far a group is behind, without joining it
    looks          what operators ask about a cluster's groups and topics
    resets         an operator moves a group: plan, requests, whether the members obey
    pushed_resets  resets that brokers of 4.x push to members
    remoting       connections: requests and answers, deadlines, TLS, what does not answer
    routing        name servers, routes, replicas
    api            one coroutine for each request
    sending        the producer, and message trace
"""

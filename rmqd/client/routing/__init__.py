"""Where topics are: which name server to ask, what it says, and which address of a broker to use.

Reading a route never waits. While no name server answers the last known routes stay, and so do, for a while, the
addresses of a broker that no route names any more: name servers forget everything when they are restarted.

    name_server       NameServers: asks whichever answers; host names and the address server, looked up again
    cluster_id        ClusterId: the id that rmqd gave the cluster, kept by its name servers
    address_server    reads an address server's list of name servers over HTTP
    first_answer      one question to several peers; the first answer counts
    route_table       RouteTable: routes of all topics in use, kept up to date
    routes            Routes: all routes at one moment; queues to read and to write
    departed_brokers  DepartedBrokers: addresses of brokers that no route names any more
    replicas          Replicas: which address of a broker to ask, while some are down
    vip_channel       a broker's second port
"""

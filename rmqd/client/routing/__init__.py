"""Routes of topics: the name servers to ask, their responses, and the addresses of brokers.

Reading a route never waits. While no name server answers, the last known routes stay. For a while, so do the addresses
of a broker that is missing from all routes, because a restarted name server has no routes.

    name_server       NameServers: asks name servers; resolves host names and reads the address server regularly
    cluster_id        ClusterId: the id that rmqd gave the cluster, stored by its name servers
    address_server    reads an address server's list of name servers over HTTP
    first_answer      one question to several peers; the first answer counts
    route_table       RouteTable: routes of all topics in use, kept up to date
    routes            Routes: all routes at one moment; queues to read and to write
    departed_brokers  DepartedBrokers: addresses of brokers that are missing from all routes
    replicas          Replicas: the address of a broker to ask while some are down
    vip_channel       a broker's second port
"""

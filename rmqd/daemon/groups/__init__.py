"""The groups of one process: built by a configuration, kept running, changed by a reload.

GroupHost is what the rest of the daemon sees, whether groups run here (LocalGroups) or in workers (`daemon.workers`).
A group is a Consumer (`consumer.contract`), on whichever engine.

    host             GroupHost and HostView: the seam to the rest of the daemon
    local_groups     LocalGroups: a client for each cluster, a supervisor for each group
    worker_share     WorkerShare: which groups, and which part of a rate limit, one of several workers has
    cluster_clients  the clients, exchanged by a reload
    supervisor       GroupSupervisor: runs a consumer, rests after a failure, starts the next one
    engine           Engine: how handlers, clients and consumers are built; replaced in tests
    spark_group      SparkGroup: a group on Spark as a consumer, over a driver process
    reload           what a reload changes, what a running group takes over (`LIVE_KEYS`), what is refused
    namespace_edge   names with and without a namespace
    health           readiness, liveness, and how late the event loop is
"""

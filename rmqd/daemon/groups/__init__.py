"""The groups of one process: built from a configuration, supervised, changed by a reload.

The rest of the daemon uses only GroupHost, whether groups run here (LocalGroups) or in workers (`daemon.workers`). A
group is a Consumer (`consumer.contract`) on either engine.

    host             GroupHost and HostView: the interface to the rest of the daemon
    local_groups     LocalGroups: a client for each cluster, a supervisor for each group
    worker_share     WorkerShare: a worker's groups, and its part of a rate limit
    cluster_clients  the clients, replaced by a reload
    supervisor       GroupSupervisor: runs a consumer, waits after a failure, starts the next one
    engine           Engine: builds handlers, clients and consumers; replaced in tests
    spark_group      SparkGroup: a group on Spark as a consumer, with a driver process
    reload           compares configurations: changes, changes while running (`LIVE_KEYS`), refused changes
    namespace_edge   names with and without a namespace
    health           readiness, liveness, and the delay of the event loop
"""

"""The daemon `rmqd run`: supervision of groups, HTTP, metrics, worker processes, reload, signals.

A failed group takes no other with it, and a bad configuration changes nothing that runs. What the start does not need
is imported later (HTTP, Prometheus): the time to the first message counts.

    daemon     run_daemon: configuration, port, groups, drain, exit code; Daemon: reload, signals
    state_dir  the folder of local state can be used, and no other process uses it
    systemd    sd_notify and the watchdog
    groups     the groups of a process: clients, supervisors, reload
    history    an hour of lag and throughput, recent rates, findings
    http       health, metrics, status, the API
    page       the status page
    metrics    names of metrics, their rendering, sums over restarts and processes
    workers    `--workers N`
    reloading  `--reload`
"""

"""The daemon `rmqd run`: supervision of groups, HTTP, metrics, worker processes, reload, signals.

A failed group does not affect other groups, and an invalid configuration changes nothing that runs. Modules that the
start does not need (HTTP, Prometheus) are imported later, to handle the first message sooner.

    daemon     run_daemon: configuration, port, groups, drain, exit code; Daemon: reload, signals
    state_dir  checks that the folder of local state is writable, and not used by another process
    systemd    sd_notify and the watchdog
    groups     the groups of a process: clients, supervisors, reload
    history    an hour of lag and throughput, recent rates, findings
    http       health, metrics, status, the API
    page       the status page
    metrics    the metrics, their rendering, sums over restarts and processes
    workers    `--workers N`
    reloading  `--reload`
"""

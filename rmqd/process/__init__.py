"""What a process of rmqd needs whatever runs in it: event loop, signals, children, garbage, telemetry, logs.

The daemon, its workers and the processes of Spark are made from these parts. They know no group.

    loop                    the event loop, its start and its end; a loop that handlers cannot stop; the exit
    signals                 SIGTERM, SIGINT and SIGHUP
    kept_reload             SIGHUP before the daemon can reload
    child                   ChildProcess: a child as its parent holds it
    watched_child           WatchedChild: a child that runs code of others, and may crash or hang
    channel                 Channel: messages between parent and child
    garbage                 collections when memory grows
    file_watch              which files have changed
    telemetry, span_export  OpenTelemetry: spans of handler calls, and their export
    structlog_without_rich  to be imported before structlog, for a faster start
    logs                    the log: one event on a line, written by a thread
"""

"""Parts of every rmqd process: event loop, signals, child processes, garbage collection, telemetry, logs.

The daemon, its workers and the processes of Spark use them. They do not depend on groups.

    loop                    the event loop: start, end, protection against handlers that stop it; the exit
    signals                 SIGTERM, SIGINT and SIGHUP
    kept_reload             SIGHUP before the daemon can reload
    child                   ChildProcess: a child process as seen by its parent
    watched_child           WatchedChild: a child process that runs foreign code and may crash or hang
    channel                 Channel: messages between parent and child
    garbage                 garbage collection when memory grows
    file_watch              detects changed files
    telemetry, span_export  OpenTelemetry: spans of handler calls, and their export
    structlog_without_rich  import it before structlog, for a faster start
    logs                    the log: one event per line, written by a thread
"""

"""The log. Callers never wait for it: lines pass through a bounded queue to a thread that writes them.

Foreign text (from producers, brokers, handlers' errors) is shortened and escaped; repeated lines are counted.

    logs        configure_logging: structlog's and the standard library's lines together
    by_logging  sends a library's events to the program's own `logging`
    handlers    the root logger's handlers
    writer      LogWriter: the thread, and its behaviour if the log is not read
    repeats     RepeatLimiter: counts equal errors
    values      cuts values, and escapes them for terminals
    printable   makes foreign text safe to show
"""

"""The log. No caller waits for it: lines go through a bounded queue to a thread that writes them.

What others send (producers, brokers, handlers' errors) is shortened and escaped; what repeats is counted.

    logs        configure_logging: structlog's and the standard library's lines together
    by_logging  the events of a library go to the program's own `logging`
    handlers    the root logger's handlers
    writer      LogWriter: the thread, and what it does when nobody reads
    repeats     RepeatLimiter: equal errors are counted
    values      values are cut, and escaped for terminals
    printable   text of strangers, made safe to show
"""

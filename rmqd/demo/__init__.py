"""The demo: an embedded RocketMQ, a producer of orders, the sample group, and a live view of them, in one process.

The group runs as in the daemon, by `LocalGroups`; what the demo adds stands outside of it and looks on. A leaf: nobody
but the command line imports this room. `rich` is imported in `view` and `screen` alone.

    run, options          from the process's start to its exit code; what was asked for
    play, stage           one run: configuration and broker; those who take part
    orders, producer      the orders, and who sends them
    handler               the sample handler
    ledger, reports       what was stored and handled; the same from Spark's processes
    figures               what the view and the summary show, at one moment
    screen, view, render  where it is shown, the frame, numbers as text
    summary               the end: what was sent, and where it all is
"""

"""The demo: an embedded RocketMQ, a producer of orders, the sample group, and a live view of them, in one process.

The group runs as in the daemon, with `LocalGroups`; the demo's own parts only observe it. This room is a leaf: only the
command line imports it. Only `view` and `screen` import `rich`.

    run, options          from the process's start to its exit code; the command's options
    play, stage           one run: configuration and broker; producer, group and observers
    orders, producer      the orders, and their producer
    handler               the sample handler
    ledger, reports       stored and handled messages; reports from Spark's processes
    figures               the figures of the view and the summary, at one moment
    screen, view, render  the output, the frame, numbers as text
    summary               the end: the number of orders, and where all of them are
"""

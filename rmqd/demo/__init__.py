"""The demo: an embedded RocketMQ, a producer of orders, the sample group, and a live view of them, in one process.

The group runs as in the daemon, by `LocalGroups`; what the demo adds stands outside of it and looks on. A leaf: nobody
but the command line imports this room. `rich` is imported in `view` and `screen` alone.
"""

"""The demo: an embedded RocketMQ, a producer of orders, the sample group, and a live view of them, in one process.

The group runs as in the daemon, with `LocalGroups`. The demo observes the group, and does not change it. Only the
command line imports this package. Only `demo_view` and `demo_screen` import `rich`.
"""

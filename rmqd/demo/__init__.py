"""The demo: an embedded RocketMQ, a producer of orders, the sample group, and a live view of them, in one process.

The group runs as in the daemon, with `LocalGroups`; the demo's own parts only observe it. This room is a leaf: only the
command line imports it. Only `view` and `screen` import `rich`.
"""

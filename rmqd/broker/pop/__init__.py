"""POP consumption: a popped message is hidden from other members for a time, and members do not own queues.

This package stores the state of pops. The processors in `rmqd.broker.processors` answer the requests.
"""

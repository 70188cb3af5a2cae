"""POP consumption: a popped message is hidden from other members for a time, and members do not own queues.

This package has the state of pops. `broker/processors` answers the requests.
"""

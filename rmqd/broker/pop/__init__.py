"""POP: messages that are hidden from other members while one member has them. Members do not own queues.

`broker/processors` answers the requests.
"""

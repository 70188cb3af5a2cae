"""The process: configuration, supervision of the groups, signals, systemd, HTTP, metrics and logs.

What this room decides is when things start and end; what a message goes through is the consumer's business.
"""

"""The daemon `rmqd run`: supervision of groups, HTTP, metrics, worker processes, reload, signals.

A failed group does not affect other groups, and an invalid configuration changes nothing that runs. Modules that the
start does not need (HTTP, Prometheus) are imported later, to handle the first message sooner.
"""

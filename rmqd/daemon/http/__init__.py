"""The HTTP endpoint: /livez, /readyz, /metrics, the status page and the API.

The socket listens from the start; the server is imported at the first connection. The server runs in the event loop of
the groups, so the number, size and duration of requests are limited.
"""

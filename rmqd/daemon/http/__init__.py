"""The HTTP endpoint: /livez, /readyz, /metrics, the status page and the API.

The socket listens from the start; the server is imported at the first connection. It shares the event loop with the
groups, so the number, size and duration of requests are limited.

    listener                          the listening socket
    endpoint                          HttpEndpoint: waits for the first connection, then serves
    server                            uvicorn with limits
    api                               the endpoints
    access                            AccessPolicy: the access rules
    status, status_text               the status as JSON, and as lines for the command
"""

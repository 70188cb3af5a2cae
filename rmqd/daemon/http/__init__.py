"""The HTTP endpoint: /livez, /readyz, /metrics, the status page and the API.

The socket listens from the start; the server is imported with the first connection. It shares the event loop with the
groups, so requests are limited in number, size and time.

    listener                          the listening socket
    endpoint                          HttpEndpoint: waits for the first connection, then serves
    server                            uvicorn with limits
    api                               the endpoints
    access                            AccessPolicy: who may ask for what
    status, status_text               the status as JSON, as lines for the command
"""

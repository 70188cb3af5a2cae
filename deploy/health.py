"""The image's health check of /livez, with few imports because it runs every few seconds.

`python -I -S health.py` exits with 0 if the daemon responds with 200 within three seconds, else with 1 and the reason
on standard error. The port is from $RMQD_HTTP_LISTEN; the address is always 127.0.0.1.
"""

import os
import socket
import sys


def main() -> int:
    """Query once. Return the exit code."""
    port = os.environ.get("RMQD_HTTP_LISTEN", "").rpartition(":")[2] or "9464"
    try:
        with socket.create_connection(("127.0.0.1", int(port)), timeout=3) as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"/livez at port {port}: {error}\n")
        return 1
    if answer.startswith(b"HTTP/1.1 200 "):
        return 0
    sys.stderr.write(answer.partition(b"\r\n\r\n")[2].decode(errors="replace") or f"no answer at port {port}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())

"""The health check of the image: asks /livez, and imports no more than that takes, since it runs every few seconds.

`python -I -S health.py`: exit 0 if the daemon answers 200 within three seconds, else 1, with why on standard error. The
address is $RMQD_HTTP_LISTEN, where the daemon listens; any address of the container stands for it.
"""

import os
import socket
import sys


def main() -> int:
    """Ask once. Returns the exit code."""
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

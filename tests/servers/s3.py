"""An S3 by moto, with objects in memory and copies on the disk: `python -m tests.servers.s3 PORT FOLDER`.

An object is on the disk before the response to its upload, and survives a kill.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from pyarrow import fs  # type: ignore[import-untyped]

from tests.servers.process import ServerProcess

TOP: Final = Path(__file__).parent.parent.parent
BUCKET: Final = "lake"
REGION: Final = "us-east-1"
ACCOUNT: Final = "123456789012"  # moto's account for any keys


class S3Server(ServerProcess):
    """Has one bucket, and accepts any keys."""

    ready_seconds = 90.0  # imports take seconds on a busy machine

    def __init__(self) -> None:
        super().__init__("s3", users=())
        self.working_directory = TOP
        self._objects = self.directory / "objects"
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str | Path]:
        return [sys.executable, "-m", "tests.servers.s3", str(self.port), self._objects]

    def is_ready(self) -> bool:
        asked = HTTPConnection("127.0.0.1", self.port, timeout=self.ready_seconds)
        try:
            asked.request("HEAD", f"/{BUCKET}")  # the first request is slow, because it loads moto's S3
            asked.getresponse()
        except (OSError, HTTPException):
            return False
        finally:
            asked.close()
        return True

    def options(self) -> dict[str, str]:
        """The options of a client of this server."""
        return {"endpoint": self.endpoint, "region": REGION, "access_key": "tests", "secret_key": "tests"}

    def kept(self, folder: str) -> list[str]:
        """The names of the objects below a folder that have a copy on the disk."""
        names = (unquote(kept.name) for kept in self._objects.iterdir() if not kept.name.startswith("."))
        return [name for name in names if name.startswith(folder)]

    def kept_at(self, name: str) -> Path:
        """The path of an object's copy."""
        return self._objects / quote(name, safe="")

    def files(self) -> Any:
        """Its objects, as pyarrow reads them."""
        host = self.endpoint.removeprefix("http://")
        return fs.S3FileSystem(
            access_key="tests", secret_key="tests", region=REGION, endpoint_override=host, scheme="http"
        )


def main() -> None:
    """Serve until killed."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import s3_backends
    from werkzeug.serving import run_simple

    port, folder = int(sys.argv[1]), Path(sys.argv[2])
    backend = s3_backends[ACCOUNT]["aws"]
    backend.create_bucket(BUCKET, REGION)
    folder.mkdir(exist_ok=True)
    for kept in folder.iterdir():
        if not kept.name.startswith("."):
            backend.put_object(BUCKET, unquote(kept.name), kept.read_bytes())
    serve = DomainDispatcherApplication(create_backend_app)

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer: Iterable[bytes] = serve(environ, start_response)
        if environ["REQUEST_METHOD"] in ("PUT", "POST"):
            bucket, _, key = environ["PATH_INFO"].lstrip("/").partition("/")
            if bucket == BUCKET and (stored := backend.buckets[BUCKET].keys.get(key)) is not None:
                name = quote(key, safe="")
                unfinished = folder / f".{threading.get_ident()}"
                unfinished.write_bytes(stored.value)
                unfinished.rename(folder / name)
        return answer

    run_simple("127.0.0.1", port, application, threaded=True)


if __name__ == "__main__":
    main()

"""Where files go: a folder of this machine, or a bucket of S3. A file is there whole, or it is not there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from pydantic import BaseModel, ConfigDict, Field, SecretStr

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem  # type: ignore[import-untyped]

SCHEME: Final = "s3://"


class S3Options(BaseModel):
    """How S3 is reached; what is left out is looked for where AWS's own programs look."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    endpoint: str | None = Field(
        None, description="of a server that is not AWS: http://host:9000 or https://host", pattern=r"^https?://[^/]+/?$"
    )
    region: str | None = Field(None, description="the region of the bucket")
    access_key: SecretStr | None = Field(None, description="beside secret_key; without, as AWS's programs find it")
    secret_key: SecretStr | None = Field(None, description="beside access_key")
    session_token: SecretStr | None = Field(None, description="beside temporary keys")
    role_arn: str | None = Field(None, description="a role that is taken on, in place of keys")
    ca_file: Path | None = Field(None, description="the authorities that the server's certificate is checked by")


class Store(Protocol):
    """Names are paths below the store's own. All methods block, and raise OSError."""

    def check(self) -> None:
        """Raises where nothing can be written."""

    def put(self, name: str, content: Any) -> None:
        """Write a file. When this returns it is there for good; no reader sees a part of it."""

    def get(self, name: str) -> bytes:
        """Read a file."""

    def names(self, folder: str) -> Sequence[str]:
        """The names of files in a folder, without it; none where there is no folder."""


class Folder:
    """A folder. What is not finished has a name that begins with a dot, which readers of folders leave out."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self) -> None:
        _make(self._path)
        if not os.access(self._path, os.W_OK | os.X_OK):
            raise PermissionError(f"{self._path} cannot be written by this user")

    def put(self, name: str, content: Any) -> None:
        path = self._path / name
        _make(path.parent)
        unfinished = path.with_name(f".{path.name}.tmp")
        try:
            with unfinished.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        _sync(path.parent)

    def get(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def names(self, folder: str) -> Sequence[str]:
        try:
            return [name for name in os.listdir(self._path / folder) if not name.startswith(".")]
        except FileNotFoundError:
            return ()


class Bucket:
    """A bucket of S3, or a folder in it. An object appears once all of it was sent."""

    def __init__(self, url: str, options: S3Options, timeout_seconds: float) -> None:
        from pyarrow import fs  # type: ignore[import-untyped]

        self._path = url.removeprefix(SCHEME).rstrip("/")
        scheme, _, host = (options.endpoint or "").rstrip("/").rpartition("://")
        self._files: S3FileSystem = fs.S3FileSystem(
            access_key=options.access_key and options.access_key.get_secret_value(),
            secret_key=options.secret_key and options.secret_key.get_secret_value(),
            session_token=options.session_token and options.session_token.get_secret_value(),
            role_arn=options.role_arn,
            region=options.region,
            endpoint_override=host or None,
            scheme=scheme or "https",
            connect_timeout=timeout_seconds,
            request_timeout=timeout_seconds,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),  # ours knows for how long
            tls_ca_file_path=options.ca_file and str(options.ca_file),
            allow_delayed_open=True,  # what is small goes over in one request
        )

    def check(self) -> None:
        from pyarrow import fs

        bucket = self._path.partition("/")[0]
        if self._files.get_file_info(bucket).type is not fs.FileType.Directory:
            raise FileNotFoundError(f"there is no bucket {bucket}, or its keys may not look at it")

    def put(self, name: str, content: Any) -> None:
        with self._files.open_output_stream(f"{self._path}/{name}") as stream:
            stream.write(content)

    def get(self, name: str) -> bytes:
        with self._files.open_input_stream(f"{self._path}/{name}") as stream:
            content: bytes = stream.read()
            return content

    def names(self, folder: str) -> Sequence[str]:
        from pyarrow import fs

        found = self._files.get_file_info(fs.FileSelector(f"{self._path}/{folder}", allow_not_found=True))
        return [one.base_name for one in found if one.type is fs.FileType.File]


def _make(folder: Path) -> None:
    """Make a folder, and those above it, for good."""
    missing = [folder, *folder.parents]
    missing = missing[: next((at for at, one in enumerate(missing) if one.exists()), len(missing))]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        _sync(one.parent)


def _sync(folder: Path) -> None:
    """Make the names in a folder last, not only what the files have."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

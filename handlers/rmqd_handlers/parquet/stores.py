"""The destination of files: a local folder, or an S3 bucket. A file appears completely or not at all."""

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
    """The connection to S3. Missing options are taken from the same places as in AWS's programs."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    endpoint: str | None = Field(
        None, description="for a server other than AWS: http://host:9000 or https://host", pattern=r"^https?://[^/]+/?$"
    )
    region: str | None = Field(None, description="the region of the bucket")
    access_key: SecretStr | None = Field(None, description="needs secret_key; default: as AWS's programs find it")
    secret_key: SecretStr | None = Field(None, description="needs access_key")
    session_token: SecretStr | None = Field(None, description="for temporary keys")
    role_arn: str | None = Field(None, description="a role to assume, instead of keys")
    ca_file: Path | None = Field(None, description="the authorities to trust for the server's certificate")


class Store(Protocol):
    """Names are paths relative to the store. All methods block, and raise OSError."""

    def check(self) -> None:
        """Raise OSError if the store is not writable."""

    def put(self, name: str, content: Any) -> None:
        """Write a file. After the return it is durable. Readers never see a part of it."""

    def get(self, name: str) -> bytes:
        """Return the content of a file."""

    def names(self, folder: str) -> Sequence[str]:
        """Return the names of files in a folder; empty if the folder is missing."""


class Folder:
    """A folder. Unfinished files have names that start with a dot, which readers of folders skip."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self) -> None:
        _make(self._path)
        if not os.access(self._path, os.W_OK | os.X_OK):
            raise PermissionError(f"{self._path} is not writable for this user")

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
    """An S3 bucket, or a folder in it. An object appears when it was sent completely."""

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
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),  # `try_again` limits the time
            tls_ca_file_path=options.ca_file and str(options.ca_file),
            allow_delayed_open=True,  # small objects are sent in one request
        )

    def check(self) -> None:
        from pyarrow import fs

        bucket = self._path.partition("/")[0]
        if self._files.get_file_info(bucket).type is not fs.FileType.Directory:
            raise FileNotFoundError(f"no bucket {bucket}, or these keys have no access to it")

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
    """Create a folder and its parents durably."""
    missing = [folder, *folder.parents]
    missing = missing[: next((at for at, one in enumerate(missing) if one.exists()), len(missing))]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        _sync(one.parent)


def _sync(folder: Path) -> None:
    """Make the names in a folder durable, not only the content of the files."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

"""The trusted servers, and the client's certificate."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator


class Tls(BaseModel):
    """The same keys as `client.tls`."""

    model_config = ConfigDict(extra="forbid")

    ca_file: Path | None = Field(None, description="PEM file of the authorities to trust; default: the system's")
    cert_file: Path | None = Field(None, description="PEM file of this client's certificate")
    key_file: Path | None = Field(None, description="PEM file of this client's key")
    key_password: SecretStr | None = Field(None, description="password of key_file")
    verify: bool = Field(True, description="check the server's certificate and host name")

    @classmethod
    def usual(cls) -> Self:
        """Return the defaults: the system's authorities, and no client certificate."""
        return cls.model_validate({})

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file needs cert_file")
        return self

    def context(self) -> ssl.SSLContext:
        """Return the context. Raises OSError or ssl.SSLError for unusable files."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file is not None:
            password = self.key_password.get_secret_value() if self.key_password is not None else None
            context.load_cert_chain(self.cert_file, self.key_file, password)
        return context

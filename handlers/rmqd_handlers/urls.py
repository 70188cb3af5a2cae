"""URLs of databases, as options."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, SecretStr


def _one_host(url: SecretStr) -> SecretStr:
    """Refuse a URL whose host would have part of the password."""
    authority = url.get_secret_value().partition("://")[2]
    for end in "/?#":
        authority = authority.partition(end)[0]
    if authority.count("@") > 1:
        raise ValueError("there is more than one @ before the host; accepted: %40 for an @ in the user or the password")
    return url


DatabaseUrl = Annotated[SecretStr, AfterValidator(_one_host)]

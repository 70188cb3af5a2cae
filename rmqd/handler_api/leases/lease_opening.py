"""Creates the deduplication store that a group's options name."""

from __future__ import annotations

from typing import Literal

from rmqd.handler_api.leases.lease_store import ClaimStore, ClaimTerms

StoreName = Literal["sqlite", "redis", "postgresql"]


def create_claim_store(name: StoreName, url: str, terms: ClaimTerms) -> ClaimStore:
    """Create the store with this name, without connecting. For `sqlite`, `url` is the path of a file."""
    if name == "redis":
        from rmqd.handler_api.leases.redis_store import RedisClaims

        return RedisClaims(url, terms)
    if name == "postgresql":
        from rmqd.handler_api.leases.postgresql_store import PostgresqlClaims

        return PostgresqlClaims(url, terms)
    from rmqd.handler_api.leases.sqlite_store import SqliteClaims

    return SqliteClaims(url, terms)

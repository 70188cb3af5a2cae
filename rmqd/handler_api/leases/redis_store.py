"""Claims in Redis. Each step is an atomic script. Leases use the Redis server's clock.

The value of a key is the token of its claim; after the confirmation, `confirmed` and the token. The token shows whether
a confirmation is repeated after a lost response. Redis deletes expired keys automatically.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError, RedisError

from rmqd.handler_api.leases.lease_store import ClaimState, ClaimStoreError, ClaimTerms, HeldClaim, Key

TIMEOUT_SECONDS: Final = 5.0

_CLAIM: Final = """
local token, owner, lease_ms, count = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local standings = {}
for place = 1, count do
    local key = KEYS[place]
    local found = redis.call('GET', key) or redis.call('GET', KEYS[count + place])
    if found and string.sub(found, 1, 9) == 'confirmed' then
        standings[place] = 'confirmed'
    elseif found and string.sub(found, 1, #owner) ~= owner then
        standings[place] = 'held'
    else
        redis.call('SET', key, token, 'PX', lease_ms)
        standings[place] = 'ours'
    end
end
return standings
"""
_CONFIRM: Final = """
local lost, confirmed = 0, 'confirmed ' .. ARGV[1]
for _, key in ipairs(KEYS) do
    local found = redis.call('GET', key)
    if found and found ~= ARGV[1] and found ~= confirmed then lost = lost + 1 end
    redis.call('SET', key, confirmed, 'PX', ARGV[2])
end
return lost
"""
_RENEW: Final = """
for place, key in ipairs(KEYS) do
    if redis.call('GET', key) == ARGV[place + 1] then redis.call('PEXPIRE', key, ARGV[1]) end
end
"""
_RELEASE: Final = """
for place, key in ipairs(KEYS) do
    if redis.call('GET', key) == ARGV[place] then redis.call('DEL', key) end
end
"""


class RedisClaims:
    """Claims in the Redis database of a URL."""

    def __init__(self, url: str, terms: ClaimTerms) -> None:
        self._terms = terms
        self._client: Redis = Redis.from_url(
            url,
            socket_connect_timeout=TIMEOUT_SECONDS,
            socket_timeout=TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),  # the caller decides when to try again
            decode_responses=True,
        )

    async def claim(self, keys: Sequence[Key], token: str, former: Sequence[str] = ()) -> list[ClaimState]:
        former_keys = [(topic, name) for (_, name), topic in zip(keys, former or [""] * len(keys), strict=True)]
        arguments = (token, self._terms.owner, _milliseconds(self._terms.lease_seconds), str(len(keys)))
        return [ClaimState(one) for one in await self._run(_CLAIM, [*keys, *former_keys], arguments)]

    async def confirm(self, keys: Sequence[Key], token: str) -> int:
        return int(await self._run(_CONFIRM, keys, (token, _milliseconds(self._terms.keep_seconds))))

    async def renew(self, held: Sequence[HeldClaim]) -> None:
        tokens = (token for _, token in held)
        await self._run(_RENEW, [key for key, _ in held], (_milliseconds(self._terms.lease_seconds), *tokens))

    async def release(self, held: Sequence[HeldClaim]) -> None:
        await self._run(_RELEASE, [key for key, _ in held], (token for _, token in held))

    async def purge(self) -> None:
        """Do nothing: Redis deletes expired keys."""

    async def close(self) -> None:
        await self._client.aclose()

    async def _run(self, script: str, keys: Sequence[Key], arguments: Iterable[str]) -> Any:
        # the braces make a cluster keep all claims of a group in one slot, as scripts require
        names = [f"rmqd:{{{self._terms.group}}}:{topic}:{name}" for topic, name in keys]
        command = ("EVAL", script, len(names), *names, *arguments)
        try:
            return await self._client.execute_command(*command)  # type: ignore[no-untyped-call]
        except ReadOnlyError as error:  # the server is no longer the master: new connections may reach the new master
            await self._client.connection_pool.disconnect()
            raise ClaimStoreError(f"Redis is read-only: {error}") from error
        except (RedisError, OSError) as error:
            raise ClaimStoreError(f"Redis: {str(error) or type(error).__name__}") from error


def _milliseconds(seconds: float) -> str:
    return str(round(seconds * 1000))

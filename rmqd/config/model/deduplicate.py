"""`deduplicate`: how a group identifies messages, and where it records the handled ones."""

# No postponed annotations here: pydantic would parse all of them from text at every start.

import re
from typing import Annotated, Final

from rmqd.claims.opening import StoreName
from rmqd.config.model.kinds import Choice, Duration, Text
from rmqd.config.model.section import Section, setting

_BY: Final = r"^(msg_id|keys|property:.+)$"


class DeduplicateConfig(Section):
    """Leases on messages, before their handler is called, and records of handled messages."""

    by: Annotated[
        str, Text("msg_id, keys, or property:NAME", lambda text: re.search(_BY, text) is not None, pattern=_BY)
    ] = setting(
        "msg_id",
        "the identity of a message: msg_id | keys | property:NAME; messages without it are not deduplicated",
    )
    store: Annotated[StoreName, Choice(("sqlite", "redis", "postgresql"))] = setting(
        "sqlite",
        "where handled messages are recorded: a file, for the processes of one machine; Redis; a table in PostgreSQL",
    )
    url: Annotated[str, Text()] = setting(
        "",
        "redis://... or postgresql://...; sqlite: a path, or empty for deduplicate/<group>.sqlite3 in state_dir",
    )
    keep: Annotated[float, Duration("1m", "3650d")] = setting(
        "3d", "a duration, 1m to 3650d: how long a handled message is remembered"
    )

"""By what, and where, a group notes which messages its handler is done with."""

# No postponed annotations here: pydantic would have to read them all from text, on every start.

import re
from typing import Annotated, Final

from rmqd.claims.opening import StoreName
from rmqd.config.model.kinds import Choice, Duration, Text
from rmqd.config.model.section import Section, setting

_BY: Final = r"^(msg_id|keys|property:.+)$"


class DeduplicateConfig(Section):
    """Claims of messages, before their handler is called, and confirmations, when it is done."""

    by: Annotated[
        str, Text("msg_id, keys, or property:NAME", lambda text: re.search(_BY, text) is not None, pattern=_BY)
    ] = setting(
        "msg_id",
        "what makes a message the same one: msg_id | keys | property:NAME; one without is handled each time it comes",
    )
    store: Annotated[StoreName, Choice(("sqlite", "redis", "postgresql"))] = setting(
        "sqlite", "where that is noted: a file, for the processes of one machine; a Redis; a table of a PostgreSQL"
    )
    url: Annotated[str, Text()] = setting(
        "",
        "redis://... or postgresql://...; sqlite: a path, or empty for deduplicate/<group>.sqlite3 in state_dir",
    )
    keep: Annotated[float, Duration("1m", "3650d")] = setting(
        "3d", "a duration, 1m to 3650d: how long it is known that a message was handled"
    )

"""The offset store `postgresql`, tested with the suite for users' own stores."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from rmqd.testing import OffsetStoreSuite
from rmqd_handlers.postgresql import PostgresqlOffsets
from tests.servers.postgresql import PostgresqlServer

pytestmark = pytest.mark.process


class TestPostgresql(OffsetStoreSuite):
    @pytest.fixture(autouse=True)
    def _on(self, postgresql: PostgresqlServer, database: str) -> None:
        self._url = database
        postgresql.execute(database, "CREATE TABLE effects (name text)")

    def make_store(self) -> PostgresqlOffsets:
        return PostgresqlOffsets(PostgresqlOffsets.Options.model_validate({"url": self._url}))

    async def add(self, connection: Any, name: str) -> None:
        await connection.execute("INSERT INTO effects VALUES (%s)", (name,))

    async def has(self, connection: Any, name: str) -> bool:
        return bool((await connection.execute("SELECT FROM effects WHERE name = %s", (name,))).rowcount)


def test_the_store_is_found_by_its_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "handlers" / "pyproject.toml").read_text())
    [(name, value)] = project["project"]["entry-points"]["rmqd.offset_stores"].items()
    assert EntryPoint(name, value, "rmqd.offset_stores").load() is PostgresqlOffsets
    assert name == "postgresql"


class TestOfTheDocs(TestPostgresql):
    """The store that docs/offset-stores.md shows, over the same database."""

    def make_store(self) -> Any:
        page = (Path(__file__).parents[2] / "docs" / "offset-stores.md").read_text()
        [code] = [
            one for one in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE) if "def take" in one
        ]
        names: dict[str, Any] = {}
        exec(code, names)
        made = names["SqlOffsets"]
        return made(made.Options(url=self._url.replace("postgresql:", "postgresql+psycopg:")))

    async def add(self, connection: Any, name: str) -> None:
        await connection.execute(text("INSERT INTO effects VALUES (:name)"), {"name": name})

    async def has(self, connection: Any, name: str) -> bool:
        found = await connection.execute(text("SELECT 1 FROM effects WHERE name = :name"), {"name": name})
        return found.first() is not None

"""`message.once`: on psycopg and SQLAlchemy, and in a group."""

from __future__ import annotations

"""`message.once`: on psycopg and SQLAlchemy, and in a group."""

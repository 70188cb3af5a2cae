"""Servers that handlers and pipelines write to, for tests: as processes of the run's own, no services.

process     what all have: an unprivileged user's directory, a free port, kills and starts, an end with the run
postgresql  PostgreSQL
mariadb     MariaDB
shops       a database of each dialect, by SQLAlchemy's URL
s3          an S3, by moto
fixtures    `postgresql`, and `database`, a fresh one for each test; loud where a server is not installed
"""

"""Servers that handlers and pipelines write to, as processes of the test run instead of services.

process     the common part: an unprivileged user's directory, a free port, kills and starts, the end with the run
postgresql  PostgreSQL
mariadb     MariaDB
shops       a database of each dialect, with its URL for SQLAlchemy
s3          an S3 by moto
fixtures    `postgresql`, and `database`, a new one for each test; the summary reports a server that is not installed
"""

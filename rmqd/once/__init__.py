"""`message.once(connection)`: records a handled message in the same transaction as the handler's writes.

The record, called a mark, is a row of the table `rmqd_handled`: consumer group, topic, and the id that all copies of
the message share. Mark and writes are committed together or not at all, even if the process or the database fails. If
another attempt has an open transaction with the same mark, the database makes this attempt wait for its end, like for
any primary key.

    group                  once_of: chooses by the kind of the connection
    mark                   Mark: the identity of a message, and the table's name
    psycopg_connection     connections of psycopg 3
    sqlalchemy_connection  connections and sessions of SQLAlchemy 2
"""

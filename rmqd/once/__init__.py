"""`message.once(connection)`: the mark of a handled message, in one transaction with what its handler writes.

A mark is a row of the table `rmqd_handled`: consumer group, topic, and the id that all copies of the message share.
Mark and writes are committed together or not at all. So wherever the process or the database ends, an effect without
its mark cannot be, nor a mark without its effect. An attempt that comes while another one's transaction is open waits
for its end, as the database does at two rows with one primary key.

    group                  once_of: chooses by the kind of the connection
    mark                   Mark: what identifies a message, and the table's name
    psycopg_connection     connections of psycopg 3
    sqlalchemy_connection  connections and sessions of SQLAlchemy 2
"""

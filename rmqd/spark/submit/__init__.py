"""Groups on clusters: a packed environment, and what spark-submit is told.

The driver on the cluster runs the group as `rmqd spark run` does, by `engine.foreground`.

    run, submission                   `rmqd spark submit`: runs spark-submit; what it asks of it
    submitted                         the main program of the driver on the cluster
    packed_environment, packed_files  the archive for executors, and what goes into it
"""

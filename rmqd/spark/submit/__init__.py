"""Groups on clusters: packed environments, and the options for spark-submit.

The driver on the cluster runs the group like `rmqd spark run`, with `engine.foreground`.

    run, submission                   `rmqd spark submit`: runs spark-submit; its options
    submitted                         the main program of the driver on the cluster
    packed_environment, packed_files  the archive for executors, and its files
"""

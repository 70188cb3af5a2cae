"""The parts that commands share: options, command parsing, output, and clients for clusters and the daemon."""

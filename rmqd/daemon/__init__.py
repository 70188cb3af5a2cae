"""The process: configuration, supervision of the groups, signals, health, metrics and logs."""

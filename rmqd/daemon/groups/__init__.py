"""The groups of one process: built from a configuration, supervised, changed by a reload.

The rest of the daemon uses the interface GroupHost. LocalGroups runs groups in this process, `daemon.workers` in worker
processes. The engine `local` and the engine `spark` both run a group as a Consumer (`consumer.services`).
"""

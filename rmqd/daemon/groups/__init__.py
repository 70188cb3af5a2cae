"""The groups of one process: built from a configuration, supervised, changed by a reload.

The rest of the daemon uses only GroupHost, whether groups run here (LocalGroups) or in workers (`daemon.workers`). The
engine `local` and the engine `spark` both run a group as a Consumer (`consumer.services`).
"""

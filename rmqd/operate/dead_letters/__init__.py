"""The code of `rmqd dlq`: lists, shows, replays and purges the dead letters of a group."""

"""`rmqd replay`: handles the messages of a time window again, in a shadow group."""

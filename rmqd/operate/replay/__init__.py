"""`rmqd replay`: a time window again, in a shadow group."""

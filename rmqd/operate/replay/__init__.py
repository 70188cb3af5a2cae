"""`rmqd replay`: a shadow group that handles the messages of a time window again."""

"""`rmqd offsets reset`: plans, sends and verifies resets of a group's offsets."""

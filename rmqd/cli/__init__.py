"""The commands: one module each, and everything heavy imported when its command runs."""

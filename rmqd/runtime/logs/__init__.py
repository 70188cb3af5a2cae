"""The log: its processors, the limit for repeated errors, and the thread that writes the lines."""

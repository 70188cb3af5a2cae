"""Worker processes of handlers: real ones, with handlers that die, hang and eat memory."""

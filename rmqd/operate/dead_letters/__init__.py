"""Dead letters: list, show, replay, purge."""

"""Log lines: their processors, how repeats are limited, and how lines are written."""

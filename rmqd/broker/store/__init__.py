"""The messages: where they are kept, and how they are found again."""

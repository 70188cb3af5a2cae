"""The consumer engine: from assigned queues to handled messages and committed offsets."""

"""What an engine will need, known before there is one: its sizes, the blocks of its pool, what its metrics mean."""

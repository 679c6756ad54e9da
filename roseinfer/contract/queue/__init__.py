"""What a stage with a queue promises, and the search for the shortest schedule that breaks it."""

"""What every stage promises, a file a subject."""

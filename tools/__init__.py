"""What builds the course and no notebook calls: `python -m tools.record`, and so on."""

"""Programs that build the course and that no notebook calls: `python -m tools.record`, and so on."""

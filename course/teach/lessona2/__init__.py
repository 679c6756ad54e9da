"""Background notebook a2: reading a trace."""

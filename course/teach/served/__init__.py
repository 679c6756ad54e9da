"""The same 24 requests at the end of every lesson: what they are, how a stage serves them, and what was measured."""

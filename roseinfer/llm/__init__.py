"""LLM: requests with text around the engine. Prompts become sequences, and tokens become outputs."""

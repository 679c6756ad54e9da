"""roseinfer: a course on LLM inference engines, and the engine that the course builds."""

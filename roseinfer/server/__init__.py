"""The OpenAI-compatible server: an LLM on a thread of its own, a FastAPI app, and limits on what clients may do."""

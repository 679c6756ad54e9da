"""Lesson 19: speculative decoding."""

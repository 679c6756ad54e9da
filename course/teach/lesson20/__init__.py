"""Lesson 20: serving."""

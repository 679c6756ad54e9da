"""Lesson 21: a model on more than one device."""

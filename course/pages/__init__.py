"""Reads notebooks and pages: their headings, what is folded, their links, and slides made of them."""

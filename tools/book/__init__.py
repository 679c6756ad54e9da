"""The book: recorded notebooks, docs and the teacher's kit as a static site. `python -m tools.book` builds it."""

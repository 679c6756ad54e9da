"""Attention over block tables: where its kernels run, and the cases that every implementation is held to."""

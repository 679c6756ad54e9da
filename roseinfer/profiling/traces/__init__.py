"""Traces that torch.profiler wrote: captured, read, and turned into times by phase."""

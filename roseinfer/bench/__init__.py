"""Benchmarks, interleaved: a slow minute of the machine hits all contenders alike.

A benchmark is a function that takes its settings (settings.py) and returns a Result. `interleave` calls anything in
turn; `ladder` races all stages on the same prompts, with times, exact counts and the floor beside each other.
"""

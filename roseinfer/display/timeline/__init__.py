"""A trace as a picture: its tracks, the gaps between its slices, and what of them can be seen."""

"""Measurements as a lesson shows them: proofs, races, where a change pays, what was recorded on a GPU."""

"""Speculative decoding: tokens are guessed, and one step of the model verifies all of them."""

"""What background notebook a1 alone needs."""

"""What the background notebook a3 alone needs."""

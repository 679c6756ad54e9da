"""What lesson 12 alone needs."""

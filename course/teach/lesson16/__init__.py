"""What lesson 16 alone needs."""

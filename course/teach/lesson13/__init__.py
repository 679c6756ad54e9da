"""What lesson 13 alone needs."""

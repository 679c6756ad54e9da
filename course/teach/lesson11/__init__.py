"""What lesson 11 alone needs."""

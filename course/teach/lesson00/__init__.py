"""What lesson 00 alone needs."""

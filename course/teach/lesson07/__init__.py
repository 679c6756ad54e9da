"""What lesson 07 alone needs."""

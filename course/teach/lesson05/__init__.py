"""What lesson 05 alone needs."""

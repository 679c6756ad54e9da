"""What lesson 14 alone needs."""

"""What lesson 17 alone needs."""

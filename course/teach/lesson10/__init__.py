"""What lesson 10 alone needs."""

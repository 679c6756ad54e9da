"""What lesson 15 alone needs."""

"""What lesson 03 alone needs."""

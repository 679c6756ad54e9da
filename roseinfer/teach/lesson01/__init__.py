"""What lesson 01 alone needs."""

"""What lesson 04 alone needs."""

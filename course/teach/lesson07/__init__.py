"""Helpers and checkers of lesson 07."""

"""Promises of every stage, one file per subject."""

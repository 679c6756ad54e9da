"""The five posts: their figures as data (data.py), their reproductions, a package a post; report/ writes them up."""

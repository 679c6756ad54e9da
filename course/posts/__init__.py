"""The five posts: their figures as data (data.py), and their reproduction, a package a post; report/ writes it up."""

"""Source code on the page: a stage, the change between two, two functions side by side."""

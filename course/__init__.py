"""The course: what one learns with, in a clone of the repository. `from course import teach` is all a lesson needs."""

"""Models: the purpose of a program, and the Python objects that serve it."""

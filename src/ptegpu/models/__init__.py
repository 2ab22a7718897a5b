"""Models: what a program is for, and the Python objects that use it so."""

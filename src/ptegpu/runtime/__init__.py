"""The outer program: methods, their instructions, their inputs and outputs. `program.py` is the entry point.

Nothing is imported here, so that `partition`, `build` and `join` can be used where there is no GPU library.
"""

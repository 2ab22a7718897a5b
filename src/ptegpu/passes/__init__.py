"""Rewrites of a graph between import and lowering: fold constants, remove the dead, split, plan memory."""

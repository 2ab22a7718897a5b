"""Rewrites of a graph between import and lowering: fold constants, remove dead nodes, join, split, plan memory."""

"""Explanations of a program without running it: an analysis, guards as text, costs, drawings."""

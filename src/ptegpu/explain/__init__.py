"""Explanations of a program that does not run: an analysis, guards in words, costs, drawings."""

"""Programs for tasks on pictures, sounds or texts (`ptegpu export hf`).

`specs.py` is the table of tasks, `results.py` interprets outputs, `pipeline.py` runs the program. None needs PyTorch.
"""

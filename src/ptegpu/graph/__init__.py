"""What will run, without files and without a GPU: tensors, symbolic ints, nodes, and their live shapes."""

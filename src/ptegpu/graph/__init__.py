"""Methods and graphs, without files and without a GPU: import, schemas, shape rules, patterns."""

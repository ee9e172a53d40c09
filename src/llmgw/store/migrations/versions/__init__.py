"""One module per revision, numbered in the order in which they apply."""

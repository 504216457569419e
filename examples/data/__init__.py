"""Scripts that write data sets as train and test files."""

"""DataFrames written as data files, by the executors."""

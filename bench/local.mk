# Benchmarks: make bench prints the tables.

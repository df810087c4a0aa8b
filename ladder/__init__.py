"""Benchmarks neural-network inference across stacks and says why one is faster."""

"""Benchmarks neural-network inference across stacks and says why one is faster."""

import os

# ONNX Runtime 1.29 and later reports sessions to its makers from threads of its own, also while they are timed
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

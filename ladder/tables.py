"""The columns of every table the pipeline writes, in order. Docs, schema tests and writers share them."""

FACTORS = ("device", "api", "compiler", "precision", "launch", "shape", "transfers", "threads", "options")
FLAGS = ("throttled", "contended")  # of a run whose latencies are not the rung's own; verdicts leave it out
CLEAR = "none"  # what stands in a flag that could be read and says nothing; empty: it could not be read
KEPT_OUT = ("exclude", "failed")  # verdicts of an audit that lets no rung of its engine be measured

RESULTS = (
    "platform", "host", "device_uuid", "model", "weights", "ladder", "rung", "stack", *FACTORS,
    "batch", "round", "position", "sitting", "started_at", "warmup", "iterations", "stopped_by",
    "median_ms", "mean_ms", "std_ms", "min_ms", "p90_ms", "p95_ms", "p99_ms",
    "device_span_ms", "device_busy_ms", "latency_ips", "throughput_ips",
    "achieved_tflops", "peak_compute_pct", "peak_bandwidth_pct", "unfused_bandwidth_pct", "host_share_pct",
    "peak_source", "bound",
    "process_mem_mb", "device_mem_mb", "device_mem_source", "allocator_mem_mb", "weights_mb", "activations_mb",
    "context_mb", "load_before", "parent_cpu_pct", "cooldown_s", "temperature_start_c", "temperature_end_c",
    "sm_clock_start_mhz", "sm_clock_end_mhz", "memory_clock_start_mhz", "memory_clock_end_mhz", *FLAGS,
    "throughput_throttled", "idle_power_w", "power_w", "energy_window_s", "energy_j_per_image", "ips_per_w",
    "energy_missing", "fp32_onnx_sha256", "artifact_sha256", "raw",
)  # fmt: skip

INTERACTION = ("interaction_ms", "interaction_low_ms", "interaction_high_ms")

LADDER = (
    "platform", "model", "weights", "ladder", "batch", "from", "to", "cause", "rounds", "rounds_excluded",
    "from_ms", "to_ms", "gain_ms", "gain_pct", "ci_low_pct", "ci_high_pct", "noise_floor_ms", "mde_pct",
    *INTERACTION, "verdict",
)  # fmt: skip

AUDIT = (
    "platform", "model", "weights", "engine", "stack", "requested_precision", "verdict", "reason",
    "nodes", "nodes_at_precision", "nodes_at_precision_pct", "flops_at_precision_pct", "time_at_precision_pct",
    "nodes_unknown", "precisions", "providers", "onnx_nodes", "onnx_nodes_at_precision", "onnx_nodes_at_precision_pct",
    "kept_by_range", "kept_by_op", "kept_by_exclusion", "kept_by_other",
    "parity_finite", "parity_max_abs", "parity_relative", "parity_cosine",
    "parity_boxes_relative", "parity_scores_relative", "parity_matched_pct",
    "fp32_onnx_sha256", "artifact_sha256", "detail",
)  # fmt: skip

FAILURES = ("platform", "model", "ladder", "rung", "batch", "round", "stage", "permanent", "reason", "log")

CROSS_STACK = (
    "model", "weights", "batch", "precision", "launch", "kind", "transfers", "platform", "host", "device_uuid",
    "device", "device_name", "stack", "ladder", "rung", "shape", "candidates", "audit_verdict",
    "flops_at_precision_pct", "nodes_at_precision_pct", "rounds", "rounds_excluded", "median_ms", "median_low_ms",
    "median_high_ms", "throughput_ips", "reference", "ratio", "ratio_low", "ratio_high", "verdict", "power_w",
    "energy_j_per_image", "ips_per_w",
    "peak_compute_pct", "peak_bandwidth_pct", "peak_source", "fp32_onnx_sha256", "source",
)  # fmt: skip

CROSS_STACK_REFUSED = (
    "source", "platform", "host", "device_uuid", "model", "runs", "field", "found", "expected", "against",
    "against_source", "remedy",
)  # fmt: skip

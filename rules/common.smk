# Shared by all stages: how a step is started, and how its parameters say what it depends on.

# exec: the step is Snakemake's own child, so that it can ask the kernel to die with it
shell.prefix("set -euo pipefail; exec ")

PYTHON = sys.executable


container: "docker://python:3.12-slim-bookworm"


wildcard_constraints:
    model="[^/]+",
    platform="[^/]+",
    engine="[^/]+",
    ladder="[^/]+",
    precision="|".join(PRECISIONS),
    role="inputs|calibration",
    batch=r"\d+",
    number=r"\d+",
    scope="|".join(["", *(f"{stack}/" for stack in STACK_TARGETS)]),


def spec(function):
    """A parameter holding, as JSON, what the matrix tells a step."""
    return lambda wildcards: canonical_json(function(wildcards))


def code(function):
    """A parameter that changes when a module that the step depends on does."""
    return lambda wildcards: code_hash(*function(wildcards))


def retry(pattern):
    """A parameter that changes when the step failed in a way that may pass, so that it is tried again."""
    return lambda wildcards: attempts(pattern.format(**wildcards))

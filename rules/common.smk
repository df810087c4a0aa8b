# Shared by all stages: how a step is started, and how its parameters say what it depends on.

# In a rule's command, $PYTHON $SCRIPTS/x.py is one of the scripts in the workflow's own Python. $SUPERVISE starts a step
# and leaves a failed id where it dies; the last output is the id. exec: the step is Snakemake's own child, so that it can
# ask the kernel to die with it.
# IFS: a space in one of their folders' names does not end a word, so the two words of SUPERVISE stand in two lines.
# CUDA_DEVICE_ORDER: CUDA counts GPUs as nvidia-smi does.
shell.prefix(
    f"set -euo pipefail; IFS=$'\\n'; PYTHON={quote(relpath(sys.executable))};"
    f" SCRIPTS={quote(relpath(workflow.basedir))}/scripts; SUPERVISE=$PYTHON$IFS$SCRIPTS/_supervise.py;"
    " export LADDER_PARENT=$PPID CUDA_DEVICE_ORDER=PCI_BUS_ID; exec "
)


# the software each rule runs with is in envs/, made by make and by rules/environments.smk; the image is for sites
# that want a container around it
container: "docker://python:3.12-slim-bookworm"


wildcard_constraints:
    model="(?!environments/)[^/]+",  # an environment called weights has artifacts/environments/weights.id.json
    platform="[^/]+",
    engine="[^/]+",
    ladder="[^/]+",
    environment="[^/]+",
    precision="|".join(REDUCED_PRECISIONS),
    role="inputs|calibration",
    batch=r"\d+",
    number=r"\d+",
    scope="|".join(["", *(f"{stack}/" for stack in STACKS)]),


def spec(function):
    """A parameter holding, as JSON, what a step is told."""
    return lambda wildcards: canonical_json(function(wildcards))


def code(script, further=lambda wildcards: []):
    """A parameter that changes when the script, anything it imports, or a further module does."""
    return lambda wildcards: code_hash(f"scripts.{script}", *further(wildcards))


def retry(pattern):
    """A parameter that changes when the step failed in a way that may pass, so that it is tried again."""
    return lambda wildcards: attempts(pattern.format(**wildcards))


def model_weights():
    """The weights of a model as inputs: the small id by content, the big file once it is there."""
    return {
        "weights_id": lambda w: f"artifacts/{w.model}/weights.id.json" if matrix.weights(w.model) else [],
        "weights": lambda w: ancient(matrix.weights(w.model)) if matrix.weights(w.model) else [],
    }


def with_big_files_ancient(inputs):
    """Inputs by name, those that an id beside them stands for only needing to be there."""
    return {name: ancient(path) if f"{name}_id" in inputs else path for name, path in inputs.items()}


def model_module(wildcards):
    return [steps.model_code(matrix, wildcards.model)]


def engine_of(wildcards):
    return matrix.engines[wildcards.model, wildcards.engine]


def round_of(wildcards):
    return Round(wildcards.model, wildcards.ladder, int(wildcards.batch), int(wildcards.number), wildcards.platform)


def ladders_of(wildcards):
    """The ladders of a scope: all, or those with a stack."""
    return matrix.ladders_with(wildcards.scope.rstrip("/")) if wildcards.scope else list(matrix.ladders)

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
    """A parameter naming the file that holds, as JSON, what a step is told."""
    return lambda wildcards: file_of(function(wildcards))


def as_json(function):
    """A parameter holding a small value that no step is told."""
    return lambda wildcards: canonical_json(function())


def code(script, further=lambda wildcards: []):
    """A parameter that changes when the script, anything it imports, or a further module does."""
    return lambda wildcards: code_hash(f"scripts.{script}", *further(wildcards))


def retry(pattern):
    """A parameter that changes when the step failed in a way that may pass, so that it is tried again."""
    return lambda wildcards: attempts(pattern.format(**wildcards))


def with_big_files_ancient(inputs):
    """Inputs by name, those that an id beside them stands for only needing to be there."""
    return {name: ancient(path) if f"{name}_id" in inputs else path for name, path in inputs.items()}


def with_the_device():
    """On a cluster: the resources of each platform's jobs that need its device; a platform names its own ones."""
    of_platforms = {name: matrix.config.platforms[name].resources for name in matrix.platforms}

    def resource(name):
        return lambda wildcards: of_platforms[wildcards.platform].get(name)

    return {name: resource(name) for resources in of_platforms.values() for name in resources}


# Which GPUs a step may see is a resource: unlike a parameter, another one makes nothing run again.


def the_gpu():
    """The one that a step sees that builds, audits or measures peaks: the first of its platform."""

    def argument(wildcards):
        gpus = matrix.gpus(wildcards.platform)
        return f"--gpu {matrix.device(wildcards.platform)} {quote(gpus[0])}" if gpus else ""

    return {"on_gpu": argument}


def place_of_a_round():
    """A round's share of the host and the GPUs that it may run on, its ladder's turn first.

    Where several rounds may run beside each other, two of one turn do not: one would wait for the other's GPU.
    """
    at_once = {name: matrix.rounds_at_once(name) for name in matrix.platforms}
    if not any(map(matrix.gpus, at_once)):
        return {"host": HOST_SHARES, "on_gpus": ""}  # said once: there may be thousands of rounds to ask for

    def argument(wildcards):
        gpus, turn = matrix.gpus(wildcards.platform), matrix.gpu_turn(wildcards.ladder, wildcards.model)
        return " ".join(["--gpus", *map(quote, gpus[turn:] + gpus[:turn])]) if gpus else ""

    def is_its_turn(platform, turn):
        return lambda w: int(w.platform == platform and matrix.gpu_turn(w.ladder, w.model) == turn)

    turns = [(name, turn) for name, number in at_once.items() if number > 1 for turn in range(number)]
    one_each = {f"turn_{number}": is_its_turn(*turn) for number, turn in enumerate(turns)}
    for name in one_each:
        workflow.register_resource(name, 1)
    return {"host": lambda w: HOST_SHARES // at_once[w.platform], "on_gpus": argument, **one_each}


def host_argument(wildcards):
    """How a step is told of the host that its platform was declared by; nothing where that is this one."""
    return f"--host {path}" if (path := matrix.declaration(wildcards.platform)) else ""


def model_module(wildcards):
    return [steps.model_code(matrix, wildcards.model)]


def engine_of(wildcards):
    return matrix.engines[wildcards.platform, wildcards.model, wildcards.engine]


@cache
def round_spec(model, ladder, batch):
    return file_of(steps.round_spec(matrix, model, ladder, int(batch)))


def round_inputs(wildcards):
    """What a round depends on by content, and what only needs to be there."""
    inputs = steps.round_inputs(matrix, wildcards.model, wildcards.ladder, int(wildcards.batch))
    return [*inputs["identities"], *map(ancient, inputs["files"])]


def rounds_of(ladders):
    """The records of the rounds of ladders."""
    return [round.record for round in matrix.rounds(ladders)]


def ladders_of(wildcards):
    """The ladders of a scope: all, or those with a stack."""
    return matrix.ladders_with(wildcards.scope.rstrip("/")) if wildcards.scope else list(matrix.ladders)


def fetched(table):
    """A table of every other host; one behind a storage URL is fetched for the job."""
    return lambda wildcards: [storage(path) if "://" in path else path for path in steps.brought(matrix, table)]

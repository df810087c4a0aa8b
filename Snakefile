"""Climbs a ladder of inference stacks, one cause a step. Targets here; stages in rules/."""

import sys
from os.path import relpath
from shlex import quote

sys.path.insert(0, workflow.basedir)

from ladder import steps
from ladder.dependencies import code_hash, text_hash
from ladder.files import canonical_json
from ladder.matrix import REDUCED_PRECISIONS, Round
from ladder.workflow import HOST_SHARES, attempts, begin, open_matrix

STACKS = ["pytorch", "onnxruntime", "openvino", "tensorrt", "migraphx", "rocm"]

matrix = open_matrix(workflow, config)


include: "rules/common.smk"
include: "rules/environments.smk"
include: "rules/export.smk"
include: "rules/precision.smk"
include: "rules/engine.smk"
include: "rules/audit.smk"
include: "rules/measure.smk"
include: "rules/peaks.smk"
include: "rules/aggregate.smk"


onstart:
    workflow.ladder_lock = begin(workflow, matrix)


# all ladders of the configured platform, their tables and the report
rule all:
    default_target: True
    input:
        expand("results/{table}", table=TABLES),
        "results/report.html",
        "results/check.txt",


# artifacts and their audits, without measuring anything
rule audit:
    input:
        [engine.verdict for engine in matrix.engines.values()],


# the ladders that hold one stack, with tables of their own
for stack in STACKS:

    rule:
        name:
            stack
        input:
            f"results/{stack}/check.txt" if matrix.ladders_with(stack) else [],
        log:
            f"logs/targets/{stack}.log",
        params:
            said=f"See results/{stack}/ladder.md" if matrix.ladders_with(stack) else f"{stack}: not configured",
        shell:
            "echo {params.said:q}"

"""Climbs a ladder of inference stacks, one cause a step. Targets here; stages in rules/."""

import sys
from functools import cache
from os.path import relpath
from shlex import quote

sys.path.insert(0, workflow.basedir)

from ladder import steps
from ladder.dependencies import code_hash, text_hash
from ladder.documents import FILES as DOCUMENTS
from ladder.documents import paths as document_paths
from ladder.files import canonical_json
from ladder.matrix import REDUCED_PRECISIONS
from ladder.specs import file_of
from ladder.workflow import HOST_SHARES, attempts, begin, check_targets, make_held_back_tables, open_matrix

STACKS = ["pytorch", "onnxruntime", "openvino", "tensorrt", "migraphx", "rocm"]

matrix = open_matrix(workflow, config)


include: "rules/common.smk"
include: "rules/fingerprint.smk"
include: "rules/environments.smk"
include: "rules/export.smk"
include: "rules/precision.smk"
include: "rules/engine.smk"
include: "rules/audit.smk"
include: "rules/measure.smk"
include: "rules/peaks.smk"
include: "rules/aggregate.smk"
include: "rules/documents.smk"
include: "rules/cross_stack.smk"


onstart:
    workflow.ladder_lock = begin(workflow, matrix)


onerror:
    make_held_back_tables(workflow)


# on a cluster too these stay where the workflow was called: they need the network or seconds, or show what there is
localrules:
    all,
    audit,
    check,
    environment,
    fingerprint,
    pages,
    report,
    weights,


# all ladders of the configured platforms, their tables and the report
rule all:
    default_target: True
    input:
        expand("results/{table}", table=TABLES),
        # asked for by name: a round whose files are gone is measured again though its tables are there
        rounds_of(list(matrix.ladders)),
        document_paths(matrix.config.documents),
        "results/report.html",
        "results/check.txt",


# artifacts and their audits, without measuring anything
rule audit:
    input:
        lambda w: [engine.verdict for engine in matrix.engines.values()],
    log:
        "logs/targets/audit.log",
    shell:
        "$PYTHON $SCRIPTS/audit.py {input:q}"


# the ladders that hold one stack, with tables of their own
for stack in STACKS:

    rule:
        name:
            stack
        input:
            rounds_of(matrix.ladders_with(stack)),
            check=f"results/{stack}/check.txt",
        log:
            f"logs/targets/{stack}.log",
        localrule: True
        params:
            results=subpath(input.check, parent=True),
        shell:
            "$PYTHON $SCRIPTS/show.py --results {params.results}"


check_targets(workflow, matrix, STACKS)

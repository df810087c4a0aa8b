"""Climbs a ladder of inference stacks, one cause a step. Targets below; stages in rules/."""

import sys

sys.path.insert(0, workflow.basedir)

from ladder.workflow import attempts, begin, open_matrix

matrix = open_matrix(workflow, config)


include: "rules/common.smk"
include: "rules/environments.smk"
include: "rules/export.smk"
include: "rules/precision.smk"
include: "rules/engine.smk"
include: "rules/audit.smk"
include: "rules/measure.smk"
include: "rules/aggregate.smk"


onstart:
    workflow.ladder_lock = begin(workflow, matrix)


localrules:
    all,
    audit_all,
    report,


rule all:
    default_target: True
    input:
        tables(),
        figures(),
        "results/check.txt",


rule audit:
    input:
        "results/audit.csv",

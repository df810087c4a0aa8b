# Python environments of the stacks that do not run in the workflow's own.


rule environment:
    output:
        id="artifacts/environments/{environment}.id.json",
    log:
        "logs/environment/{environment}.log",
    params:
        source=lambda w: steps.environment_source(matrix, w.environment),
        lock=lambda w: steps.environment_lock(matrix, w.environment),
        packages=lambda w: steps.environment_packages(matrix, w.environment),
        code=code("environment"),
        retry=retry("artifacts/environments/{environment}.id.json"),
    shell:
        "$SUPERVISE --stage environment --log {log:q} --outputs {output:q} --"
        " $PYTHON $SCRIPTS/environment.py {params.source} --folder .venvs/{wildcards.environment}"
        " --output-id {output.id:q} --log {log:q}"

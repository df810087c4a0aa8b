# Python environments of the stacks that do not run in the workflow's own.


rule environment:
    output:
        id="artifacts/environments/{environment}.id.json",
    log:
        "logs/environment/{environment}.log",
    params:
        source=lambda w: matrix.environment_source(w.environment),
        lock=lambda w: matrix.environment_lock(w.environment),
        packages=lambda w: matrix.environment_packages(w.environment),
        code=code("environment"),
        retry=retry("artifacts/environments/{environment}.id.json"),
    shell:
        "$SUPERVISE --stage environment --log {log:q} --outputs {output:q} --"
        " $PYTHON $SCRIPTS/environment.py {params.source} --folder .venvs/{wildcards.environment}"
        " --output-id {output.id:q}"

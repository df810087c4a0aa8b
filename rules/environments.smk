# Python environments of the stacks that do not run in the workflow's own.


rule environment:
    output:
        "artifacts/environments/{environment}.txt",
    params:
        lock=lambda w: matrix.environment_lock(w.environment),
        code=code(lambda w: ["ladder.environment"]),
    log:
        "logs/environment/{environment}.log",
    shell:
        "{PYTHON} scripts/environment.py --lock {params.lock:q} --folder .venvs/{wildcards.environment}"
        " --output {output:q} > {log:q} 2>&1"

# What an engine really is: parity with the reference, precision and place of every node.


rule audit_engine:
    input:
        unpack(lambda w: with_big_files_ancient(steps.audit_inputs(matrix, engine_of(w)))),
    output:
        audit="results/{platform}/audit/{model}/{engine}.json",
        verdict="results/{platform}/audit/{model}/{engine}.pass.json",
    log:
        "logs/audit_engine/{platform}/{model}/{engine}.log",
    resources:
        **with_the_device(),
        **the_gpu(),
    params:
        spec=spec(lambda w: steps.audit_spec(matrix, engine_of(w))),
        environment=lambda w: steps.environment_argument(matrix, engine_of(w).rung["stack"]),
        python=lambda w: steps.python(matrix, engine_of(w).rung["stack"]),
        host=host_argument,
        files=lambda w: steps.audit_arguments(matrix, engine_of(w)),
        code=lambda w: steps.engine_code(matrix, "audit_engine", engine_of(w)),
        retry=retry("results/{platform}/audit/{model}/{engine}.pass.json"),
    shell:
        "$SUPERVISE --stage audit --log {log:q} --outputs {output:q} {params.environment} {params.host}"
        " {resources.on_gpu} --"
        " {params.python:q} $SCRIPTS/audit_engine.py --spec {params.spec:q} {params.files}"
        " --output-audit {output.audit:q} --output-pass {output.verdict:q} --log {log:q}"

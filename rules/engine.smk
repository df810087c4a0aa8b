# One engine per model and rung: what the rung's stack makes of the model on this kind of host.


rule engine:
    input:
        unpack(lambda w: with_big_files_ancient(steps.engine_inputs(matrix, engine_of(w)))),
    output:
        payload="artifacts/{platform}/{model}/{engine}/engine",
        build="artifacts/{platform}/{model}/{engine}/build.json",
        id="artifacts/{platform}/{model}/{engine}/id.json",
    log:
        "logs/engine/{platform}/{model}/{engine}.log",
    resources:
        **with_the_device(),
        **the_gpu(),
    params:
        spec=spec(lambda w: steps.engine_spec(matrix, engine_of(w))),
        environment=lambda w: steps.environment_argument(matrix, engine_of(w).rung["stack"]),
        python=lambda w: steps.python(matrix, engine_of(w).rung["stack"]),
        host=host_argument,
        files=lambda w: steps.engine_arguments(matrix, engine_of(w)),
        code=lambda w: steps.engine_code(matrix, "engine", engine_of(w)),
        retry=retry("artifacts/{platform}/{model}/{engine}/id.json"),
    shell:
        "$SUPERVISE --stage engine --log {log:q} --outputs {output:q} {params.environment} {params.host}"
        " {resources.on_gpu} --"
        " {params.python:q} $SCRIPTS/engine.py --spec {params.spec:q} {params.files}"
        " --output-engine {output.payload:q} --output-id {output.id:q} --output-build {output.build:q} --log {log:q}"

# What a platform's device can do at best, by its PyTorch: nothing that is timed depends on it.


rule peaks:
    input:
        lambda w: matrix.environment_id(matrix.peaks_stack(w.platform)) or [],
    output:
        id="artifacts/{platform}/peaks.json",
    log:
        "logs/peaks/{platform}.log",
    resources:
        **with_the_device(),
        **the_gpu(),
        host=HOST_SHARES,
    params:
        spec=spec(lambda w: steps.peaks_spec(matrix, w.platform)),
        environment=lambda w: steps.environment_argument(matrix, matrix.peaks_stack(w.platform)),
        python=lambda w: steps.python(matrix, matrix.peaks_stack(w.platform)),
        host=host_argument,
        code=code("peaks"),
        retry=retry("artifacts/{platform}/peaks.json"),
    shell:
        "$SUPERVISE --stage peaks --alone --log {log:q} --outputs {output:q} {params.environment} {params.host}"
        " {resources.on_gpu} --"
        " {params.python:q} $SCRIPTS/peaks.py --spec {params.spec:q} --output {output.id:q} --log {log:q}"

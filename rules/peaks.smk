# What the platform's device can do at best, by its PyTorch: nothing that is timed depends on it.


rule peaks:
    input:
        lambda w: matrix.environment_id(matrix.peaks_stack) or [],
    output:
        id="artifacts/{platform}/peaks.json",
    log:
        "logs/peaks/{platform}.log",
    resources:
        host=HOST_SHARES,
    params:
        spec=spec(lambda w: steps.peaks_spec(matrix)),
        environment=lambda w: steps.environment_argument(matrix, matrix.peaks_stack),
        python=lambda w: steps.python(matrix, matrix.peaks_stack),
        code=code("peaks"),
        retry=retry("artifacts/{platform}/peaks.json"),
    shell:
        "$SUPERVISE --stage peaks --alone --log {log:q} --outputs {output:q} {params.environment} --"
        " {params.python:q} $SCRIPTS/peaks.py --spec {params.spec:q} --output {output.id:q} --log {log:q}"

# One job a round: every rung of the ladder once, back to back, on a host held alone.


rule round:
    input:
        lambda w: steps.round_inputs(matrix, round_of(w))["identities"],
        files=lambda w: [ancient(file) for file in steps.round_inputs(matrix, round_of(w))["files"]],
    output:
        # kept until the script has seen whether anything that it depends on really changed
        record=update("results/{platform}/rounds/{model}/{ladder}/b{batch}/{number}.json"),
        raw=update("results/{platform}/rounds/{model}/{ladder}/b{batch}/{number}.parquet"),
    log:
        "logs/round/{platform}/{model}/{ladder}/b{batch}/{number}.log",
    priority: lambda w: -int(w.number)
    resources:
        host=HOST_SHARES,
    params:
        spec=spec(lambda w: steps.round_spec(matrix, round_of(w))),
        retry=retry("results/{platform}/rounds/{model}/{ladder}/b{batch}/{number}.json"),
    shell:
        "$PYTHON $SCRIPTS/round.py --spec {params.spec:q} --output {output.record:q} --raw {output.raw:q} --log {log:q}"

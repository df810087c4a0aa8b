# One job a round: every rung of the ladder once, back to back, on a host held alone.


rule round:
    input:
        round_inputs,
    output:
        # kept until the script has seen whether anything that it depends on really changed
        record=update("results/{platform}/rounds/{model}/{ladder}/b{batch}/{number}.json"),
        raw=update("results/{platform}/rounds/{model}/{ladder}/b{batch}/{number}.parquet"),
    log:
        "logs/round/{platform}/{model}/{ladder}/b{batch}/{number}.log",
    priority: lambda w: -int(w.number)
    resources:
        **with_the_device(),
        # beside rounds that do not need the whole host a build may be started: it waits for them at the host's locks
        **place_of_a_round(),
    params:
        spec=lambda w: round_spec(w.model, w.ladder, w.batch),
        host=host_argument,
        retry=retry("results/{platform}/rounds/{model}/{ladder}/b{batch}/{number}.json"),
    shell:
        "$PYTHON $SCRIPTS/round.py --spec {params.spec:q} --round {wildcards.number} {params.host} {resources.on_gpus}"
        " --output {output.record:q} --raw {output.raw:q} --log {log:q}"

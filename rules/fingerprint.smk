# What the hosts of declared platforms are, asked where their jobs run: engines and rounds are keyed by it.


rule declare_host:
    output:
        "artifacts/{platform}/host.json",
    log:
        "logs/fingerprint/{platform}.log",
    resources:
        **with_the_device(),
    params:
        device=lambda w: matrix.device(w.platform),
        sitting=os.environ.get("LADDER_SITTING"),  # every call asks again: drivers change
    shell:
        "$PYTHON $SCRIPTS/fingerprint.py --device {params.device} --output {output:q} --log {log:q}"


rule fingerprint:
    input:
        list(matrix.declarations.values()),
    log:
        "logs/targets/fingerprint.log",
    params:
        said="Declared: " + ", ".join(matrix.declarations) if matrix.declarations else "no platform says host: declared",
    shell:
        "echo {params.said:q}"

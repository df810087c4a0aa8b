# From a model's definition to its FP32 ONNX file, its inputs and its reference outputs.


rule weights:
    output:
        file="artifacts/{model}/weights.bin",
        id="artifacts/{model}/weights.id.json",
    params:
        spec=spec(lambda w: matrix.model_spec(w.model)),
        code=code(lambda w: ["ladder.weights", matrix.model_module(w.model)]),
        retry=retry("artifacts/{model}/weights.id.json"),
    log:
        "logs/weights/{model}.log",
    shell:
        "{PYTHON} scripts/weights.py --spec {params.spec:q} --output-weights {output.file:q} --output-id {output.id:q}"
        " > {log:q} 2>&1"


rule inputs:
    input:
        lambda w: matrix.weights_inputs(w.model),
    output:
        arrays="artifacts/{model}/{role}.npz",
        id="artifacts/{model}/{role}.id.json",
    params:
        spec=spec(lambda w: matrix.model_spec(w.model)),
        data=spec(lambda w: matrix.data_spec(w.model, w.role)),
        files=lambda w: matrix.data_fingerprint(w.model, w.role),
        weights=lambda w: matrix.weights_argument(w.model),
        code=code(lambda w: ["ladder.inputs", matrix.model_module(w.model)]),
        retry=retry("artifacts/{model}/{role}.id.json"),
    log:
        "logs/inputs/{model}.{role}.log",
    shell:
        "{PYTHON} scripts/inputs.py --spec {params.spec:q} --data {params.data:q} --role {wildcards.role}"
        " {params.weights} --output-arrays {output.arrays:q} --output-id {output.id:q} > {log:q} 2>&1"


rule export:
    input:
        lambda w: matrix.weights_inputs(w.model),
        id="artifacts/{model}/inputs.id.json",
        arrays=ancient("artifacts/{model}/inputs.npz"),
    output:
        onnx="artifacts/{model}/fp32.onnx",
        reference="artifacts/{model}/reference.npz",
        id="artifacts/{model}/fp32.id.json",
        build="artifacts/{model}/fp32.build.json",
        graph="artifacts/{model}/fp32.graph.json",
    params:
        spec=spec(lambda w: matrix.model_spec(w.model)),
        weights=lambda w: matrix.weights_argument(w.model),
        code=code(lambda w: ["ladder.export", matrix.model_module(w.model)]),
        versions=spec(lambda w: matrix.export_versions(w.model)),
        retry=retry("artifacts/{model}/fp32.id.json"),
    log:
        "logs/export/{model}.log",
    shell:
        "{PYTHON} scripts/export.py --spec {params.spec:q} {params.weights} --inputs {input.arrays:q}"
        " --output-onnx {output.onnx:q} --output-reference {output.reference:q} --output-id {output.id:q}"
        " --output-build {output.build:q} --output-graph {output.graph:q} > {log:q} 2>&1"

# From a model's definition to its FP32 ONNX file, its inputs and its reference outputs.

SAMPLES = {"inputs": 8, "calibration": 128}  # at most so many are taken from the data


rule weights:
    output:
        file="artifacts/{model}/weights.bin",
        id="artifacts/{model}/weights.id.json",
    log:
        "logs/weights/{model}.log",
    params:
        spec=spec(lambda w: steps.model_spec(matrix, w.model)),
        given=lambda w: steps.local_weights(matrix, w.model),
        versions=lambda w: canonical_json(steps.drawing_versions(matrix, w.model)),
        code=code("weights", model_module),
        retry=retry("artifacts/{model}/weights.id.json"),
    shell:
        "$SUPERVISE --stage weights --log {log:q} --outputs {output:q} --"
        " $PYTHON $SCRIPTS/weights.py --spec {params.spec:q} --output-weights {output.file:q}"
        " --output-id {output.id:q} --log {log:q}"


rule inputs:
    input:
        weights_id="artifacts/{model}/weights.id.json",
        weights=ancient("artifacts/{model}/weights.bin"),
    output:
        arrays="artifacts/{model}/{role}.npz",
        id="artifacts/{model}/{role}.id.json",
    log:
        "logs/inputs/{model}.{role}.log",
    params:
        spec=spec(lambda w: steps.model_spec(matrix, w.model)),
        data=spec(lambda w: steps.data_spec(matrix, w.model, w.role)),
        given=lambda w: steps.data_state(matrix, w.model, w.role),
        samples=lambda w: SAMPLES[w.role],
        code=code("inputs", model_module),
        retry=retry("artifacts/{model}/{role}.id.json"),
    shell:
        "$SUPERVISE --stage inputs --log {log:q} --outputs {output:q} --"
        " $PYTHON $SCRIPTS/inputs.py --spec {params.spec:q} --data {params.data:q} --samples {params.samples}"
        " --weights {input.weights:q} --weights-id {input.weights_id:q}"
        " --output-npz {output.arrays:q} --output-id {output.id:q} --log {log:q}"


rule export:
    input:
        weights_id="artifacts/{model}/weights.id.json",
        weights=ancient("artifacts/{model}/weights.bin"),
        id="artifacts/{model}/inputs.id.json",
        arrays=ancient("artifacts/{model}/inputs.npz"),
    output:
        onnx="artifacts/{model}/fp32.onnx",
        reference="artifacts/{model}/reference.npz",
        build="artifacts/{model}/fp32.build.json",
        graph="artifacts/{model}/fp32.graph.json",
        id="artifacts/{model}/fp32.id.json",
    log:
        "logs/export/{model}.log",
    params:
        spec=spec(lambda w: steps.model_spec(matrix, w.model)),
        code=code("export", model_module),
        versions=as_json(steps.export_versions),
        retry=retry("artifacts/{model}/fp32.id.json"),
    shell:
        "$SUPERVISE --stage export --log {log:q} --outputs {output:q} --"
        " $PYTHON $SCRIPTS/export.py --spec {params.spec:q} --weights {input.weights:q}"
        " --weights-id {input.weights_id:q} --inputs {input.arrays:q} --inputs-id {input.id:q}"
        " --output-onnx {output.onnx:q} --output-reference {output.reference:q}"
        " --output-id {output.id:q} --output-build {output.build:q} --output-graph {output.graph:q} --log {log:q}"

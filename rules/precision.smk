# Reduced-precision ONNX files, with the calibration they came from.


rule precision:
    input:
        fp32_id="artifacts/{model}/fp32.id.json",
        fp32=ancient("artifacts/{model}/fp32.onnx"),
        calibration_id="artifacts/{model}/calibration.id.json",
        calibration=ancient("artifacts/{model}/calibration.npz"),
    output:
        onnx="artifacts/{model}/{precision}.onnx",
        graph="artifacts/{model}/{precision}.graph.json",
        scales="artifacts/{model}/{precision}.scales.json",
        id="artifacts/{model}/{precision}.id.json",
    log:
        "logs/precision/{model}.{precision}.log",
    params:
        options=spec(lambda w: steps.conversion_spec(matrix, w.model)),
        code=code("precision"),
        versions=as_json(steps.conversion_versions),
        retry=retry("artifacts/{model}/{precision}.id.json"),
    shell:
        "$SUPERVISE --stage precision --log {log:q} --outputs {output:q} --"
        " $PYTHON $SCRIPTS/precision.py --precision {wildcards.precision} --options {params.options:q}"
        " --onnx {input.fp32:q} --calibration {input.calibration:q} --output-onnx {output.onnx:q}"
        " --output-graph {output.graph:q} --output-scales {output.scales:q} --output-id {output.id:q} --log {log:q}"

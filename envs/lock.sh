#!/bin/sh
# Resolve envs/*.in in a fresh environment and write the locked files. Needs the network.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet -r envs/main.in
"$folder/bin/pip" freeze --all --exclude pip > "$folder/main"
"$folder/bin/pip" install --quiet -r envs/test.in
"$folder/bin/pip" freeze --all --exclude pip > "$folder/all"
note='# Locked by `make lock`; installed with pip install --no-deps.'
kept='^nvidia-(modelopt|ml-py)=='
gpu='^(nvidia-|cuda-|triton==)'
# triton compiles for GPUs only, and torch does without it on a CPU
only='sys_platform == "linux" and platform_machine == "x86_64"'
# the headless build of OpenCV is the same code without the need for the host's libGL
{ echo "$note"; grep -E "$kept" "$folder/main"; grep -vE "$gpu" "$folder/main" | sed 's/^opencv-python==/opencv-python-headless==/'; } > envs/main.txt
{ echo "$note Loaded by PyPI's build of torch at import, GPU or not."; grep -E "$gpu" "$folder/main" | grep -vE "$kept|^triton" | sed "s/\$/ ; $only/"; } > envs/torch-cuda.txt
{ echo "$note"; grep -vxFf "$folder/main" "$folder/all"; } > envs/test.txt
"${PYTHON:-python3}" -m venv "$folder/cluster"
"$folder/cluster/bin/pip" install --quiet -c "$folder/main" -r envs/cluster.in
"$folder/cluster/bin/pip" freeze > "$folder/plugins"
{ echo "$note"; grep -vxFf "$folder/main" "$folder/plugins"; } > envs/cluster.txt
# environments of their own, in step with the main one; TensorRT's source package fetches its other two parts itself
for name in tensorrt-rtx cuda migraphx onnxruntime-rocm rocm; do
    "${PYTHON:-python3}" -m venv "$folder/$name"
    "$folder/$name/bin/pip" install --quiet -c "$folder/main" -r "envs/$name.in"
    "$folder/$name/bin/pip" freeze | grep -vE '^tensorrt_cu13_(bindings|libs)==' > "$folder/pins"
    { echo "$note"; grep '^--' "envs/$name.in" || true; sed 's/^opencv-python==/opencv-python-headless==/' "$folder/pins"; } > "envs/$name.txt"
done

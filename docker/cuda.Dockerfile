# The workflow for NVIDIA GPUs: docker build -f docker/cuda.Dockerfile -t ladder:cuda .
# docker run --rm --gpus 'device=0' -v "$PWD:/ladder" ladder:cuda
# CUDA's libraries come from PyPI with PyTorch and TensorRT (envs/cuda.txt, into /ladder/.venvs), the driver's from the
# host through NVIDIA's container toolkit.
FROM python:3.11.14-slim-bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/ladder
COPY Makefile ./
COPY envs envs
ENV PIP_NO_CACHE_DIR=1
RUN make .venv/installed
COPY . .
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /ladder
ENTRYPOINT ["/opt/ladder/.venv/bin/snakemake", "-s", "/opt/ladder/Snakefile"]

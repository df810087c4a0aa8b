# The workflow for AMD GPUs: docker build -f docker/rocm.Dockerfile -t ladder:rocm .
# docker run --rm --device /dev/kfd --device /dev/dri --group-add video --group-add render -v "$PWD:/ladder" ladder:rocm
# ROCm with MIGraphX and amdsmi is in the image, its stacks' Python packages are made into /ladder/.venvs.
FROM rocm/dev-ubuntu-24.04:7.2
RUN apt-get update \
    && apt-get install -y --no-install-recommends amd-smi-lib make migraphx python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/ladder
COPY Makefile ./
COPY envs envs
ENV PIP_NO_CACHE_DIR=1
RUN make .venv/installed TORCH=cpu
COPY . .
WORKDIR /ladder
ENTRYPOINT ["/opt/ladder/.venv/bin/snakemake", "-s", "/opt/ladder/Snakefile"]

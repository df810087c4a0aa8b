# The workflow and its CPU stacks: docker build -f docker/cpu.Dockerfile -t ladder:cpu .
# docker run --rm -v "$PWD:/ladder" ladder:cpu      measures into the present folder
FROM python:3.11.14-slim-bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/ladder
COPY Makefile ./
COPY envs envs
ENV PIP_NO_CACHE_DIR=1
RUN make .venv/installed TORCH=cpu
COPY . .
WORKDIR /ladder
ENTRYPOINT ["/opt/ladder/.venv/bin/snakemake", "-s", "/opt/ladder/Snakefile"]

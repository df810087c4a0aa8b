"""ONNX Runtime with a known slowdown: each run takes longer by the share that the option ``share`` names."""

from __future__ import annotations

import time
from dataclasses import replace

from ladder.stacks import onnxruntime


def create(**arguments):
    return Slower(onnxruntime.create(**arguments))


class Slower:
    def __init__(self, inner):
        self.inner = inner

    def build(self, source, rung, destination):
        return self.inner.build(source, _without_share(rung), destination)

    def open(self, source, payload, rung, batch):
        return SlowerSession(self.inner.open(source, payload, _without_share(rung), batch), rung.options["share"])

    def nodes(self, source, payload, rung, batch, inputs):
        return self.inner.nodes(source, payload, _without_share(rung), batch, inputs)

    def identity(self):
        return self.inner.identity()


class SlowerSession:
    def __init__(self, inner, share):
        self.inner, self.share = inner, share

    def run(self):
        start = time.perf_counter()
        self.inner.run()
        self.inner.synchronise()
        end = time.perf_counter()
        while time.perf_counter() < end + self.share * (end - start):
            pass

    def __getattr__(self, name):
        return getattr(self.inner, name)


def _without_share(rung):
    return replace(rung, options={name: value for name, value in rung.options.items() if name != "share"})

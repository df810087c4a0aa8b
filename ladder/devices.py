"""Which of its platform's GPUs a round runs on: a ladder stays on the one that its first round took.

That GPU stands, by its UUID, in the ladder's pin beside its rounds. What a round holds meanwhile: ladder/locks.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ladder import locks, telemetry
from ladder.errors import StepError
from ladder.files import read_json, write_json


def faults(device: str, gpus: Sequence[str]) -> Iterator[str]:
    """What is wrong with GPUs named by number or UUID, a line each: not there, named twice, not of one kind."""
    named: dict[str, str] = {}
    kinds: dict[tuple[str | None, ...], str] = {}
    for gpu in gpus:
        try:
            reader = telemetry.open_reader(device, gpu)
        except StepError as error:
            yield f"{gpu}: {error}"
            continue
        if first := named.get(reader.uuid):
            yield f"{first} and {gpu} are one GPU, {reader.uuid}; each may stand once"
        named.setdefault(reader.uuid, gpu)
        told = reader.identity()
        kinds.setdefault((told.get("name"), told.get("compute_capability")), gpu)
    if len(kinds) > 1:
        listed = "; ".join(f"{gpu} is a {name} ({capability})" for (name, capability), gpu in kinds.items())
        yield f"{listed}; a platform is one kind of GPU: give each kind a platform of its own"


@contextmanager
def held(device: str, gpus: Sequence[str], ladder: Path, *, exclusive_host: bool, waiting: str) -> Iterator[str | None]:
    """Hold what a round needs to itself; the block gets the UUID of the GPU that it runs on, None on a CPU.

    ``gpus``: the platform's, by number or UUID, best first; none: the first that this process sees. ``ladder``: the
    folder of one ladder's and model's rounds. Raises StepError, before the block, where a GPU cannot be read or the
    ladder is pinned to another one; prints ``waiting`` once where others are waited for.
    """
    if device == "cpu":
        with locks.host_lock(exclusive=True, waiting=waiting):
            yield None
        return
    pin = ladder / "gpu.json"

    def candidates() -> list[str]:
        uuids = [telemetry.open_reader(device, gpu).uuid for gpu in gpus or (None,)]
        return [_pinned(pin, uuids)] if gpus and pin.exists() else uuids

    def keep(uuid: str) -> None:
        if gpus and not pin.exists():
            write_json(pin, {"uuid": uuid})

    if exclusive_host:
        with locks.host_lock(exclusive=True, waiting=waiting):
            uuid = candidates()[0]
            keep(uuid)
            yield uuid
    else:
        with locks.gpu_lock(candidates, keep, waiting=waiting) as uuid:
            yield uuid


def _pinned(pin: Path, uuids: Sequence[str]) -> str:
    """The GPU that a ladder's rounds run on. Raises StepError where it is none of the platform's any more."""
    try:
        uuid = read_json(pin)["uuid"]
    except (ValueError, KeyError, TypeError) as error:
        raise StepError(f"{pin} does not say which GPU the ladder stays on ({error!r}); remove it") from None
    if uuid not in uuids:
        raise StepError(
            f"{pin} keeps this ladder on {uuid}, which is none of the platform's GPUs ({', '.join(uuids)}): list it in "
            "platforms.NAME.gpus again, or remove that file, and what is still to be measured runs on one of these"
        )
    return uuid

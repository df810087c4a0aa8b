"""The errors a user sees. Each message names the thing, what was expected and what to do."""

from __future__ import annotations


class StepError(Exception):
    """One step of the pipeline gave no result; the message stands in failures.csv as it is.

    ``permanent`` says that the failure follows from the inputs alone (an unsupported operator, parity),
    so the same inputs are not tried again.
    """

    def __init__(self, message: str, *, permanent: bool = False):
        super().__init__(message)
        self.permanent = permanent


class ConfigError(Exception):
    """The configuration is wrong; ``faults`` holds one line each, all of them at once."""

    def __init__(self, faults: list[str]):
        super().__init__("\n".join(faults))
        self.faults = faults

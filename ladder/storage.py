"""Files on a storage, such as S3, through Snakemake's storage plugins.

Artifacts and results may be there as a whole, behind the default storage provider. Snakemake then knows every file by
the local copy that it keeps below .snakemake/storage. Steps are told plain paths, and read files beside those that a
rule names: the plain folders are links to the copies, and the copies stay.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError

FOLDERS = ("artifacts", "results")


def install(workflow: Any) -> None:
    """Let ``artifacts`` and ``results`` be what a given default storage provider keeps of them here.

    Called while the Snakefile is read; a plan alone makes no links. Ends the program with one line where copies would
    not stay, or the folders are there already.
    """
    settings = workflow.storage_settings
    if not settings or not settings.default_storage_provider or workflow.output_settings.dryrun:
        return
    if not settings.keep_storage_local:
        sys.exit(
            "--default-storage-provider needs --keep-storage-local-copies: steps read files beside those that "
            "Snakemake would fetch for them; see docs/caches.md"
        )
    for folder in map(Path, FOLDERS):
        if folder.is_dir() and not folder.is_symlink():
            sys.exit(f"{folder}/ is here already: with --default-storage-provider start in a folder without it")
        query = f"{settings.default_storage_prefix.rstrip('/')}/{folder}"
        copies = workflow.storage_registry.default_storage_provider.object(query).local_path()
        copies.mkdir(parents=True, exist_ok=True)
        if not folder.is_symlink():
            folder.symlink_to(copies)


def fault(workflow: Any, url: str) -> str | None:
    """What keeps the file behind a storage URL from being fetched, e.g. ``is not there``; None where nothing does."""
    try:
        workflow.storage_registry.infer_provider(url)
    except WorkflowError:
        return "is taken by no storage plugin in .venv, or by several; docs/cross_stack.md says how to install one"
    try:
        found = workflow.storage_registry(url).flags["storage_object"].exists()
    except Exception as error:  # whatever the plugin, or the library beneath it, raises
        return f"cannot be read: {' '.join(str(error).split()) or repr(error)}"
    return None if found else "is not there, or may not be read"

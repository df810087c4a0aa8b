"""Artifacts and results on a storage, such as S3, through Snakemake's default storage provider.

Snakemake then knows every file by the local copy that it keeps below .snakemake/storage. Steps are told plain paths,
and read files beside those that a rule names: the plain folders are links to the copies, and the copies stay.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

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

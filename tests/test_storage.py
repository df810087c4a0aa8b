"""Artifacts and results on S3-compatible storage, against a local server.

Skipped where envs/storage.txt, the plugin and a server, is not installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import plugin_folder
import pytest
from workflow_run import ROOT, Workflow, copy_repository, identity_config, with_change

from ladder.files import sha256

PLUGIN = plugin_folder.require("storage", "snakemake_storage_plugin_s3")
sys.path.append(PLUGIN["PYTHONPATH"].partition(":")[0])
boto3 = pytest.importorskip("boto3")
moto = pytest.importorskip("moto.server")

KEY = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}
STORED = "--default-storage-provider", "s3", "--default-storage-prefix", "s3://ladder/team"
KEPT = (*STORED, "--keep-storage-local-copies")
ROUND = "results/cpu/rounds/identity/known/b{}/1.json"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return copy_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def server():
    """The address of an S3 server."""
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture(scope="module")
def bucket(server):
    bucket = boto3.resource("s3", endpoint_url=server, **KEY).Bucket("ladder")
    bucket.create()
    return bucket


@pytest.fixture(scope="module")
def new_workflow(repository, server, tmp_path_factory):
    def make(name):
        reached = {
            "SNAKEMAKE_STORAGE_S3_ENDPOINT_URL": server,
            "SNAKEMAKE_STORAGE_S3_ACCESS_KEY": "any",
            "SNAKEMAKE_STORAGE_S3_SECRET_KEY": "any",
        }
        return Workflow(repository, tmp_path_factory.mktemp(name), **reached, **PLUGIN)

    return make


@pytest.fixture(scope="module")
def first(new_workflow, bucket):
    """A workflow that has measured a round, and its configuration."""
    workflow = new_workflow("first")
    config = identity_config(workflow.folder, {"known": {}})
    workflow.call(config, *KEPT, "--", ROUND.format(1)).must()
    return workflow, config


def stored(bucket):
    """The bucket's objects by path."""
    return {each.key.removeprefix("team/"): each for each in bucket.objects.all()}


def test_artifacts_and_measurements_are_in_the_bucket(first, bucket):
    workflow, _ = first
    found = stored(bucket)
    assert {"artifacts/identity/fp32.onnx", "artifacts/cpu/identity/known-fp32/engine", ROUND.format(1)} <= set(found)
    for path, each in found.items():
        if not path.startswith("logs/"):
            assert each.get()["Body"].read() == (workflow.folder / path).read_bytes()


def test_a_second_call_has_nothing_to_do(first):
    workflow, config = first
    assert "Nothing to be done" in workflow.call(config, "-n", *KEPT, "--", ROUND.format(1)).must().text


def test_another_machine_goes_on_from_a_copy_of_the_bucket(first, bucket, new_workflow):
    """The files that the configuration names are the same there; a round of another batch is all that it measures."""
    workflow = new_workflow("second")
    config = identity_config(workflow.folder, {"known": {}})
    for path, each in stored(bucket).items():
        copy = workflow.folder / ".snakemake/storage/s3/ladder/team" / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(each.get()["Body"].read())
    two = with_change(config, lambda c: c["ladders"]["known"].update(batches=[1, 2]))
    call = workflow.call(two, *KEPT, "--", ROUND.format(2)).must()
    assert call.jobs() == {"round": 1}
    engine = "artifacts/cpu/identity/known-fp32/engine"
    assert sha256(workflow.folder / engine) == sha256(first[0].folder / engine)
    assert ROUND.format(2) in stored(bucket)


def test_results_of_other_hosts_are_brought_from_a_bucket(new_workflow, server):
    bucket = boto3.resource("s3", endpoint_url=server, **KEY).Bucket("hosts")
    bucket.create()
    workflow = new_workflow("compared")
    config = identity_config(workflow.folder, {"known": {}})
    measured = {"s3://hosts/h200": "h200/2026-12-01", "s3://hosts/cpu/": "cpu/2026-12-01"}
    for url, folder in measured.items():
        for table in ("results.csv", "summary.json"):
            path = Path(url.removeprefix("s3://hosts/")) / table
            bucket.upload_file(str(ROOT / "docs/measurements" / folder / table), str(path))

    def call(*folders):
        compared = {"results": list(folders), "reference": "cpu"}
        return workflow.call(with_change(config, lambda c: c.update(cross_stack=compared)), "--", "cross_stack")

    call(*measured).must()
    assert {row["source"] for row in workflow.table("cross_stack.csv")} == set(measured)
    gone = "cross_stack.results: 's3://hosts/gone/results.csv' is not there, or may not be read"
    assert gone in call("s3://hosts/h200", "s3://hosts/gone").must(1).text


def test_what_would_not_work_ends_before_any_job(new_workflow):
    workflow = new_workflow("refused")
    config = identity_config(workflow.folder, {"known": {}})
    fetched = workflow.call(config, *STORED, "--", ROUND.format(1)).must(1).text
    assert "--default-storage-provider needs --keep-storage-local-copies" in fetched
    Path(workflow.folder / "results").mkdir()
    assert "results/ is here already" in workflow.call(config, *KEPT, "--", ROUND.format(1)).must(1).text

"""Weights: whatever is not the file that was pinned is refused and not left behind."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
import torchvision

from ladder import models, weights
from ladder.errors import StepError
from ladder.files import read_json, sha256, write_json
from ladder.models import torchvision as source

BODY = b"weights" * 300_000
HASH = hashlib.sha256(BODY).hexdigest()
SCRIPT = Path(__file__).parents[1] / "scripts" / "weights.py"


class Handler(BaseHTTPRequestHandler):
    files = {"/w.pt": BODY}

    def do_GET(self) -> None:
        name, _, how = self.path.partition("?")
        if name not in self.files:
            self.send_error(404)
            return
        body = self.files[name]
        self.send_response(200)
        if how != "unsized":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if how == "stalled":
            threading.Event().wait(3)
            return
        self.wfile.write(body[:1000] if how == "truncated" else body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize("query", ["", "?unsized"])
def test_a_file_with_the_right_hash_is_kept(server: str, tmp_path: Path, query: str) -> None:
    assert weights.fetch(f"{server}/w.pt{query}", HASH, tmp_path / "weights.bin") == HASH
    assert (tmp_path / "weights.bin").read_bytes() == BODY


def test_a_mismatch_deletes_the_file_and_names_both_hashes(server: str, tmp_path: Path) -> None:
    with pytest.raises(StepError, match=f"sha256 {HASH}, expected {'0' * 64}") as failure:
        weights.fetch(f"{server}/w.pt", "0" * 64, tmp_path / "weights.bin")
    assert failure.value.permanent
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("w.pt?truncated", "closed after 1000 of 2100000 bytes"),
        ("none.pt", "404"),
        ("w.pt?stalled", "timed out"),
    ],
)
def test_a_failed_transfer_may_be_tried_again(server: str, tmp_path: Path, address: str, message: str) -> None:
    with pytest.raises(StepError, match=message) as failure:
        weights.fetch(f"{server}/{address}", HASH, tmp_path / "weights.bin", timeout=0.5)
    assert not failure.value.permanent
    assert not list(tmp_path.iterdir())


def test_only_the_web_is_fetched_from(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="only http and https"):
        weights.fetch(f"file://{tmp_path}/w.pt", HASH, tmp_path / "weights.bin")


def spec_of(**section: object) -> dict:
    return {"name": "m", "source": "ultralytics", "architecture": None, "weights": section}


def test_labels() -> None:
    assert weights.label(spec_of(seeded=0)) == "seeded(0)"
    assert weights.label(spec_of(path="x.pt", sha256="abcd1234" + "0" * 56)) == "file sha256:abcd1234"
    assert models.weights_label(spec_of(pretrained=True), {"sha256": "f" * 64}) == "pretrained sha256:ffffffff"


def test_a_local_file_must_be_the_pinned_one(tmp_path: Path) -> None:
    path, copy, pins = tmp_path / "w.pt", tmp_path / "weights.bin", tmp_path / "pins.json"
    path.write_bytes(BODY)
    identity = weights.obtain(spec_of(path=str(path), sha256=HASH), copy, pins)
    assert identity == {"status": "ok", "sha256": HASH, "url": None, "label": f"file sha256:{HASH[:8]}"}
    assert copy.read_bytes() == BODY
    for section, message in (
        ({"path": str(path), "sha256": "0" * 64}, f"has sha256 {HASH}, but 0000"),
        ({"path": str(path)}, "pickle, which runs code"),
        ({"path": str(tmp_path / "none.pt"), "sha256": HASH}, "no such weights file"),
        ({"url": "http://127.0.0.1/w.pt"}, "a url needs the sha256"),
    ):
        with pytest.raises(StepError, match=message):
            weights.obtain(spec_of(**section), tmp_path / "other.bin", pins)
    assert path.exists() and not (tmp_path / "other.bin").exists()
    onnx = spec_of(path=str(path)) | {"source": "onnx"}
    assert weights.obtain(onnx, copy, pins)["sha256"] == HASH


def test_the_recorded_hash_is_enforced(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(BODY)
    spec = spec_of(pretrained=True)
    with pytest.raises(StepError, match="pickle, which runs code"):
        weights.verify(spec, path)
    write_json(tmp_path / "weights.id.json", {"status": "ok", "sha256": HASH})
    assert weights.verify(spec, path) == path
    path.write_bytes(BODY + b"x")
    with pytest.raises(StepError, match=f"expected {HASH}"):
        weights.verify(spec, path)


def test_torchvisions_files_are_known_by_their_name_then_by_their_hash(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(4)
    plain = torchvision.models.resnet18(weights=None)
    torch.save(plain.state_dict(), tmp_path / "state.pth")
    body = (tmp_path / "state.pth").read_bytes()
    full = hashlib.sha256(body).hexdigest()
    url = f"{server}/resnet18-{full[:8]}.pth"
    Handler.files[f"/resnet18-{full[:8]}.pth"] = body
    spec = {"name": "r", "source": "torchvision", "architecture": "resnet18", "weights": {"pretrained": True}}
    spec |= {"input": [64, 64], "axes": {"batch": "batch"}}
    assert source.pretrained(spec)[1] == "f37072fd"
    monkeypatch.setattr(source, "pretrained", lambda spec: (url, full[:8]))

    path, pins = tmp_path / "weights.bin", tmp_path / "weights.pins.json"
    identity = weights.obtain(spec, path, pins)
    assert (identity["sha256"], identity["url"]) == (full, url)
    assert read_json(pins) == {url: full}
    write_json(tmp_path / "weights.id.json", identity)
    with torch.inference_mode():
        picture = torch.rand(1, 3, 64, 64)
        expected = plain.eval()(picture)
        torch.testing.assert_close(models.load(spec, path)(picture), expected, rtol=1e-3, atol=1e-4)

    write_json(pins, {url: full[:8] + "0" * 56})  # another file that matches the name's hash alone
    with pytest.raises(StepError, match="expected " + full[:8] + "0"):
        weights.obtain(spec, path, pins)


def test_the_script_records_what_it_did(server: str, tmp_path: Path) -> None:
    def run(section: dict, **model: str) -> dict:
        files = ["--output-weights", tmp_path / "weights.bin", "--output-id", tmp_path / "weights.id.json"]
        write_json(tmp_path / "spec.json", spec_of(**section) | model)
        command = [sys.executable, SCRIPT, "--spec", tmp_path / "spec.json", *files]
        subprocess.run(command, check=True, capture_output=True)
        return read_json(tmp_path / "weights.id.json")

    attempts = tmp_path / "weights.id.json.attempts"
    assert run({"url": f"{server}/w.pt", "sha256": HASH})["sha256"] == HASH
    assert not attempts.exists()
    failed = run({"url": f"{server}/none.pt", "sha256": HASH})
    assert (failed["status"], failed["stage"], failed["permanent"]) == ("failed", "weights", False)
    assert (tmp_path / "weights.bin").read_bytes() == b""
    assert len(attempts.read_text().splitlines()) == 1
    assert run({"url": f"{server}/w.pt", "sha256": "0" * 64})["permanent"]
    assert len(attempts.read_text().splitlines()) == 1
    drawn = run({"seeded": 5}, source="transformers", architecture="bert-tiny")
    assert drawn == {
        "status": "ok",
        "sha256": sha256(tmp_path / "weights.bin"),
        "url": None,
        "label": "seeded(5)",
    }
    failed = run({"seeded": 5}, source="transformers", architecture="bert-huge")
    assert (failed["status"], failed["permanent"]) == ("failed", True) and "known are bert-tiny" in failed["reason"]

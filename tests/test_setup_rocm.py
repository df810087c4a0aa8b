"""scripts/setup_rocm.sh on made-up hosts: what it refuses and why, what it makes, and that it makes it once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from ladder import environment

ROOT = Path(__file__).parent.parent
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
TARGETS = [f"artifacts/environments/{name}.id.json" for name in ("rocm", "migraphx")]
# what stands in the real programs' place notes each call, and makes what they would
MAKE = """#!/bin/sh
echo "make $*" >> "{calls}"
[ -z "$NO_NETWORK" ] || {{ echo "ERROR: No matching distribution found" >&2; exit 2; }}
[ -e .venv/installed ] && exit
mkdir -p .venv/bin
cp "{stubs}/python" .venv/bin/python && cp "{stubs}/snakemake" .venv/bin/snakemake && touch .venv/installed
"""
SNAKEMAKE = """#!/bin/sh
echo "snakemake $*" >> "{calls}"
[ -z "$LOCKED" ] || exit 1
mkdir -p artifacts/environments
for name in rocm migraphx; do
    [ -e artifacts/environments/$name.id.json ] && continue
    mkdir -p .venvs/$name/bin && cp "{stubs}/python" .venvs/$name/bin/python
    printf '{{\\n "status": "%s"\\n}}\\n' "${{STATUS-ok}}" > artifacts/environments/$name.id.json
done
"""
PYTHON = """#!/bin/sh
case "$2" in
    *telemetry*) echo "GPU-aaaa111122223333 AMD Instinct MI300X" ;;
    *"import torch"*)
        [ -z "$NO_GPU" ] || {{ echo "AssertionError: it finds no GPU"; exit 1; }}
        echo "2.14.1+rocm7.2 AMD Instinct MI300X" ;;
    *"import migraphx"*) echo 2.15.0 ;;
    *onnxruntime*) echo 1.27.1 ;;
    *) exec {real} "$@" ;;
esac
"""


class Host:
    """A folder with a copy of the script, one that it takes for /, and one of programs that come first on PATH."""

    def __init__(self, folder: Path):
        self.repository, self.root, self.stubs = (folder / name for name in ("repository", "root", "stubs"))
        self.calls = folder / "calls"
        self.rocm = self.root / "opt/rocm"
        (self.repository / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "scripts/setup_rocm.sh", self.repository / "scripts")
        for path in (
            *("dev/kfd", "dev/dri/renderD128", "dev/dri/renderD129"),
            *("opt/rocm/share/amd_smi/amdsmi/__init__.py", f"opt/rocm/lib/{self.module(VERSION)}"),
        ):
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).touch()
        (self.rocm / ".info").mkdir()
        (self.rocm / ".info/version").write_text("7.2.4-81\n")
        self.stubs.mkdir()
        known = {"calls": self.calls, "stubs": self.stubs, "real": sys.executable}
        self.program("make", MAKE.format(**known))
        self.program("snakemake", SNAKEMAKE.format(**known))
        self.program("python", PYTHON.format(**known))
        self.program("uname", "#!/bin/sh\necho Linux x86_64\n")
        self.user("someone", "someone render video")

    @staticmethod
    def module(version: str) -> str:
        return f"migraphx.cpython-{version.replace('.', '')}-x86_64-linux-gnu.so"

    def program(self, name: str, text: str) -> None:
        (self.stubs / name).write_text(text)
        (self.stubs / name).chmod(0o755)

    def user(self, name: str, groups: str) -> None:
        number = 0 if name == "root" else 1000
        self.program("id", f"#!/bin/sh\ncase $1 in -nG) echo {groups};; -un) echo {name};; -u) echo {number};; esac\n")

    def call(self, *arguments: str, shell: str = "bash", **variables: str) -> subprocess.CompletedProcess:
        kept = {k: v for k, v in os.environ.items() if k not in ("ROCM_PATH", "PYTHON")}
        own = {"PATH": f"{self.stubs}{os.pathsep}{os.environ['PATH']}", "HOST_ROOT": str(self.root)}
        command = [shell, "scripts/setup_rocm.sh", *arguments]
        environment = kept | own | {"PYTHON": str(self.stubs / "python")} | variables
        return subprocess.run(command, cwd=self.repository, env=environment, capture_output=True, text=True)

    def state(self) -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in self.repository.rglob("*")}


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def test_a_host_that_has_all_is_set_up_and_told_what_was_found(host):
    done = host.call()
    assert (done.returncode, done.stderr) == (0, "")
    for found in ("/dev/kfd, 2 render node(s)", "ROCm 7.2.4-81", f"MIGraphX for Python {VERSION}", "someone"):
        assert found in done.stdout
    for told in (
        *("GPU: GPU-aaaa111122223333 AMD Instinct MI300X", "PyTorch: 2.14.1+rocm7.2", "MIGraphX: 2.15.0"),
        *("ONNX Runtime: 1.27.1", "ready: make bench climbs the AMD ladder"),
    ):
        assert told in done.stdout
    assert host.calls.read_text().splitlines() == [
        f"make PYTHON={host.stubs / 'python'} .venv/installed",
        f"snakemake --config platform=amd -- {' '.join(TARGETS)}",
    ]


def test_a_second_call_changes_nothing(host):
    assert host.call().returncode == 0
    before = host.state()
    again = host.call()
    assert (again.returncode, host.state()) == (0, before) and "ready" in again.stdout


def test_a_dry_run_prints_its_plan_and_does_nothing(host):
    before = host.state()
    done = host.call("--dry-run")
    assert done.returncode == 0 and "would go on" in done.stdout and host.state() == before
    assert "run     make" in done.stdout and "artifacts/environments/migraphx.id.json" in done.stdout
    assert not host.calls.exists()


def test_a_dry_run_on_a_bare_machine_says_all_that_is_missing(host):
    shutil.rmtree(host.root)
    host.program("uname", "#!/bin/sh\necho Darwin arm64\n")
    host.user("someone", "staff")
    done = host.call("--dry-run", PYTHON="no-such-python")
    assert (done.returncode, done.stderr) == (0, "") and not host.calls.exists()
    assert "would stop here, for 6 failed check(s)" in done.stdout
    lines = done.stdout.splitlines()
    failed = [number for number, line in enumerate(lines) if line.startswith("FAILED")]
    assert len(failed) == 6 and all(lines[number + 1].startswith("        → ") for number in failed)


def without(*paths: str):
    return lambda host: [(host.root / path).unlink() for path in paths]


def another_migraphx(host):
    (host.rocm / "lib" / host.module(VERSION)).rename(host.rocm / "lib" / host.module("3.10"))


@pytest.mark.parametrize(
    ("change", "wrong", "advice"),
    [
        (lambda host: host.program("uname", "#!/bin/sh\necho Linux aarch64\n"), "Linux aarch64", "x86-64"),
        (without("dev/kfd"), "no kernel driver", "amdgpu-dkms"),
        (without("dev/dri/renderD128", "dev/dri/renderD129"), "no GPU: /dev/dri/renderD*", "lspci"),
        (
            lambda host: host.user("someone", "someone video"),
            "not in the group render",
            "usermod -aG render,video someone",
        ),
        (without("opt/rocm/.info/version"), "no ROCm in", "ROCM_PATH"),
        (lambda host: (host.rocm / ".info/version").write_text("6.4.1\n"), "ROCm 6.4.1", "install ROCm 7.2"),
        (lambda host: host.program("python", "#!/bin/sh\nexit 127\n"), "does not run", "PYTHON=python3.12"),
        (
            lambda host: host.program("python", '#!/bin/sh\ncase "$2" in *exit*) exit 1;; *) echo 3.10;; esac\n'),
            "is Python 3.10",
            "3.11 or newer is needed",
        ),
        (
            lambda host: host.program("python", '#!/bin/sh\ncase "$2" in *venv*) exit 1;; *) echo 3.12;; esac\n'),
            "has no venv",
            "apt install python3.12-venv",
        ),
        (without(f"opt/rocm/lib/{Host.module(VERSION)}"), "no MIGraphX in", "apt install migraphx"),
        (another_migraphx, f"is not for Python {VERSION}: migraphx.cpython-310-", "name a Python that it is for"),
        (without("opt/rocm/share/amd_smi/amdsmi/__init__.py"), "no amdsmi in", "amd-smi-lib"),
    ],
)
def test_each_failed_check_says_what_to_do_and_nothing_is_changed(host, change, wrong, advice):
    change(host)
    before = host.state()
    done = host.call()
    assert done.returncode == 1 and "1 check(s) failed; nothing was changed" in done.stdout
    lines = done.stdout.splitlines()
    (failed,) = [number for number, line in enumerate(lines) if line.startswith("FAILED")]
    assert wrong in lines[failed] and advice in lines[failed + 1]
    assert host.state() == before and not host.calls.exists()


def test_root_needs_no_groups_and_rocm_may_be_elsewhere(host, tmp_path):
    host.user("root", "root")
    host.rocm.rename(tmp_path / "rocm-7.2.4")
    assert host.call(ROCM_PATH=str(tmp_path / "rocm-7.2.4")).returncode == 0


def test_an_environment_that_could_not_be_made_is_named(host):
    done = host.call(STATUS="failed")
    assert done.returncode == 1 and "2 part(s) failed" in done.stdout and "ready" not in done.stdout
    assert "logs/environment/migraphx.log says why" in done.stdout


@pytest.mark.parametrize(
    ("variable", "said"),
    [("NO_NETWORK", "FAILED  the workflow's environment .venv"), ("LOCKED", "FAILED  the environments could not")],
)
def test_a_step_that_ends_badly_is_named_and_nothing_is_said_to_be_ready(host, variable, said):
    done = host.call(**{variable: "1"})
    assert done.returncode == 1 and said in done.stdout and "then call this again" in done.stdout
    assert "ready" not in done.stdout and "GPU: " not in done.stdout
    assert host.call().returncode == 0  # once the cause is gone


def test_sh_takes_it_too_and_a_path_may_have_spaces(tmp_path):
    (tmp_path / "a host of größe 機").mkdir()
    done = Host(tmp_path / "a host of größe 機").call(shell="sh")
    assert (done.returncode, done.stderr) == (0, "") and "ready: make bench" in done.stdout


def test_what_does_not_work_in_the_end_is_said(host):
    done = host.call(NO_GPU="1")
    assert done.returncode == 1 and "FAILED  PyTorch: AssertionError: it finds no GPU" in done.stdout
    assert "MIGraphX: 2.15.0" in done.stdout  # the others are told all the same


def test_another_argument_is_refused(host):
    done = host.call("--help")
    assert done.returncode == 2 and "usage" in done.stderr


def test_what_it_asks_of_the_workflow_can_be_had(tmp_path):
    command = [sys.executable, "-m", "snakemake", "-n", "-s", str(ROOT / "Snakefile"), "--directory", str(tmp_path)]
    command += ["--configfile", str(ROOT / "config.yaml"), "--config", "platform=amd", "--", *TARGETS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "environment        2" in done.stdout, done.stderr


def test_the_environment_finds_the_modules_that_rocm_brings(tmp_path, monkeypatch):
    def without_pip(command, what, run=environment._run):  # which takes seconds to install
        if "venv" in command:
            venv.create(command[-1], with_pip=False)
        return "" if "venv" in command or "pip" in command else run(command, what)

    monkeypatch.setattr(environment, "_run", without_pip)
    monkeypatch.setattr(environment, "_install", lambda command, lock: None)
    (tmp_path / "rocm.txt").write_text("")
    shutil.copy(ROOT / "envs/rocm.pth", tmp_path)
    environment.make(tmp_path / "rocm.txt", tmp_path / "made")
    (tmp_path / "opt/lib").mkdir(parents=True)
    (tmp_path / "opt/lib/migraphx.py").write_text("place = __file__")
    command = [tmp_path / "made/bin/python", "-c", "import migraphx; print(migraphx.place)"]
    done = subprocess.run(
        command, env=os.environ | {"ROCM_PATH": str(tmp_path / "opt")}, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(tmp_path / "opt/lib/migraphx.py"), done.stderr

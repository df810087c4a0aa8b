"""A Slurm of one node on this machine: controller, node daemon and munge from Debian's slurm-wlm and munge."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

SETTINGS = Path("/etc/slurm")  # a job's own srun looks nowhere else
DAEMONS = ("munged", "slurmctld", "slurmd")
PATH = f"{os.environ['PATH']}:/usr/sbin"
SECONDS = 30  # for anything of Slurm's own to happen
RETURN_SECONDS = 180  # for a node to come back: its killed jobs stay "completing" for a while

# 4 CPUs and 64 GB are told, not asked: what is tried here is who waits for whom. A node that is silent for 5 s is
# down, its jobs fail and are not queued again.
SLURM_CONF = """
ClusterName=ladder
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SlurmdTimeout=5
JobRequeue=0
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=500
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MinJobAge=3600
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 Sockets=1 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=64000 Gres=gpu:1 State=UNKNOWN
PartitionName=cpu Nodes={host} Default=YES State=UP
PartitionName=gpu Nodes={host} State=UP
"""
GRES_CONF = "Name=gpu Count=1 File=/dev/null\n"  # a count without a file makes the node invalid


@dataclass(frozen=True)
class SlurmJob:
    """One job as ``scontrol show job`` tells it; times are seconds since 1970, None while there is none."""

    id: int
    rule: str
    partition: str
    state: str
    gpus: int
    started: float | None
    ended: float | None


def missing() -> str | None:
    """Why no cluster can be started here; None where it can."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    if any(path.exists() and not path.is_symlink() for path in (SETTINGS / "slurm.conf", SETTINGS / "gres.conf")):
        return f"this host has a Slurm of its own: {SETTINGS}"
    absent = [name for name in DAEMONS if not shutil.which(name, path=PATH)]
    return f"{', '.join(absent)} not found: apt-get install slurm-wlm munge" if absent else None


class Cluster:
    def __init__(self, folder: Path):
        self.folder = folder
        for name in ("state", "spool"):
            (folder / name).mkdir(parents=True)
        settings = {"folder": folder, "host": socket.gethostname().split(".")[0], "ports": _free_ports(2)}
        (folder / "slurm.conf").write_text(SLURM_CONF.format(**settings))
        (folder / "gres.conf").write_text(GRES_CONF)
        SETTINGS.mkdir(exist_ok=True)
        for name in ("slurm.conf", "gres.conf"):
            (SETTINGS / name).unlink(missing_ok=True)  # a link that a killed test left behind
            (SETTINGS / name).symlink_to(folder / name)

    def ask(self, *command: str) -> str:
        """What one of Slurm's commands prints."""
        asked = subprocess.run(
            command, env=os.environ | {"PATH": PATH}, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        if asked.returncode:
            raise RuntimeError(f"{' '.join(command)}: {asked.stderr.strip()}")
        return asked.stdout

    def start_daemon(self, name: str) -> None:
        self.ask(name)

    def start_node(self) -> None:
        """Start the node's daemon and wait until jobs can run there."""
        self.start_daemon("slurmd")
        wait_for(
            lambda: self.ask("sinfo", "-h", "-p", "gpu", "-o", "%t").strip() == "idle",
            "the node to be idle",
            RETURN_SECONDS,
        )

    def kill_node(self) -> None:
        """kill -9 all that runs on the node at once: its daemon, its jobs and their processes."""
        daemon = psutil.Process(int((self.folder / "slurmd.pid").read_text()))
        steps = [process for process in self._processes() if process.name() == "slurmstepd"]
        killed = [daemon, *steps, *(child for each in steps for child in each.children(recursive=True))]
        for process in killed:
            process.suspend()  # nobody has time to tell of another's death
        for process in killed:
            process.kill()
        psutil.wait_procs(killed, timeout=SECONDS)

    def jobs(self) -> list[SlurmJob]:
        """Every job that was submitted, oldest first."""
        found = []
        for line in self.ask("scontrol", "show", "job", "--oneliner").splitlines():
            fields = dict(re.findall(r"(\w[\w:/]*)=(\S*)", line))
            if "JobId" in fields:
                found.append(
                    SlurmJob(
                        id=int(fields["JobId"]),
                        rule=re.sub(r"_wildcards_.*", "", fields.get("Comment", "")).removeprefix("rule_"),
                        partition=fields["Partition"],
                        state=fields["JobState"],
                        gpus=int("gres:gpu" in fields.get("TresPerNode", "") + fields.get("TresPerJob", "")),
                        started=_time(fields["StartTime"]),
                        ended=_time(fields["EndTime"]),
                    )
                )
        return sorted(found, key=lambda job: job.id)

    def stop(self) -> None:
        """End whatever of this cluster still runs."""
        ours = self._processes()
        ours += [child for process in ours for child in process.children(recursive=True)]
        for process in ours:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(ours, timeout=SECONDS)
        for name in ("slurm.conf", "gres.conf"):
            (SETTINGS / name).unlink(missing_ok=True)

    def _processes(self) -> list[psutil.Process]:
        """This cluster's daemons, which work in its folder."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess):  # processes end while they are looked at
                if "slurm" not in process.name():
                    continue
                if process.cwd().startswith(str(self.folder)):
                    found.append(process)
        return found


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """A cluster whose node is idle, until the block ends."""
    cluster = Cluster(folder)
    with _munge():
        try:
            cluster.start_daemon("slurmctld")
            cluster.start_node()
            yield cluster
        finally:
            cluster.stop()


def wait_for(happened: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    """Raises TimeoutError where it does not happen within so many seconds."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(0.2)


@contextmanager
def _munge() -> Iterator[None]:
    """munge, by which Slurm knows its users: the host's own one where it runs, else one until the block ends."""
    if subprocess.run(["munge", "-n"], capture_output=True, timeout=SECONDS, check=False).returncode == 0:
        yield
        return
    subprocess.run(["install", "-d", "-o", "munge", "-g", "munge", "/run/munge"], check=True)
    subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", "/usr/sbin/munged"], check=True, timeout=SECONDS)
    try:
        yield
    finally:
        os.kill(int(Path("/run/munge/munged.pid").read_text()), signal.SIGTERM)


def _free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _time(text: str) -> float | None:
    return None if text in ("Unknown", "N/A", "None") else time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))

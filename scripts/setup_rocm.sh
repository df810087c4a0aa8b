#!/usr/bin/env bash
# Set up a host with an AMD GPU: check it, make the environments of the AMD ladder, say what was found. Each failed
# check says what to do. A second call changes nothing.
#   scripts/setup_rocm.sh            do it
#   scripts/setup_rocm.sh --dry-run  print what was found and what would be done; works on any machine
# PYTHON names the Python to use (3.11 or newer), ROCM_PATH where ROCm is, HOST_ROOT a folder to take for / (for tests).
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # called by sh
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
root=${HOST_ROOT:-}
rocm=${ROCM_PATH:-$root/opt/rocm}
environments=(rocm migraphx)
dry_run=false
failed=0

case "${1:-}" in
    "") ;;
    --dry-run) dry_run=true ;;
    *) echo "usage: scripts/setup_rocm.sh [--dry-run]" >&2; exit 2 ;;
esac

good() { printf 'ok      %s\n' "$1"; }
bad() { # what is wrong, what to do
    printf 'FAILED  %s\n        → %s\n' "$1" "$2"
    failed=$((failed + 1))
}

check_machine() {
    local machine
    machine=$(uname -sm)
    if [ "$machine" = "Linux x86_64" ]; then good "$machine"
    else bad "this is $machine" "ROCm and its Python packages are for x86-64 Linux"
    fi
}

check_driver() {
    local nodes=("$root"/dev/dri/renderD*)
    if [ ! -e "$root/dev/kfd" ]; then
        bad "no kernel driver: /dev/kfd is not there" \
            "install AMD's driver (package amdgpu-dkms, amdgpu-install --usecase=rocm), then reboot; in a container add --device /dev/kfd --device /dev/dri"
    elif [ ! -e "${nodes[0]}" ]; then
        bad "no GPU: /dev/dri/renderD* is not there" \
            "see whether lspci lists the GPU and dmesg says why amdgpu does not take it; in a container add --device /dev/dri"
    else
        good "kernel driver: /dev/kfd, ${#nodes[@]} render node(s)"
    fi
}

check_groups() {
    local groups group missing=()
    groups=" $(id -nG) "
    for group in render video; do
        [[ $groups == *" $group "* ]] || missing+=("$group")
    done
    if [ "$(id -u)" = 0 ] || [ ${#missing[@]} = 0 ]; then good "groups: the GPU's devices are open to $(id -un)"
    else bad "$(id -un) is not in the group ${missing[*]}" \
        "sudo usermod -aG render,video $(id -un), then log out and in"
    fi
}

check_rocm() {
    local version
    if ! version=$(cat "$rocm/.info/version" 2>/dev/null); then
        bad "no ROCm in $rocm" "install ROCm 7.2 (amdgpu-install --usecase=rocm), or name its folder with ROCM_PATH"
    elif [[ $version != 7.* ]]; then
        bad "ROCm $version in $rocm" "install ROCm 7.2: envs/rocm.txt and envs/migraphx.txt are built for it"
    else
        good "ROCm $version in $rocm"
        [[ $version == 7.2* ]] || printf '        note: envs/rocm.txt is built for 7.2\n'
    fi
}

check_python() {
    local version
    [ ! -x .venv/bin/python ] || python=.venv/bin/python # what is there is kept, and makes the others
    if ! version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then
        bad "$python does not run" "install Python 3.11 or newer, or name one: PYTHON=python3.12 scripts/setup_rocm.sh"
    elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        bad "$python is Python $version" "3.11 or newer is needed; name one: PYTHON=python3.12 scripts/setup_rocm.sh"
    elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        bad "$python has no venv" "sudo apt install python$version-venv"
    else
        good "Python $version"
        check_migraphx "$version"
    fi
}

check_migraphx() { # Python's version
    local tag modules=("$rocm"/lib/migraphx.cpython-*.so)
    tag=cpython-${1/./}
    if [ ! -e "${modules[0]}" ]; then
        bad "no MIGraphX in $rocm/lib" "sudo apt install migraphx"
    elif [[ ${modules[*]} != *"migraphx.$tag-"* ]]; then
        bad "MIGraphX in $rocm/lib is not for Python $1: ${modules[*]##*/}" \
            "name a Python that it is for: PYTHON=python3.12 scripts/setup_rocm.sh (rm -r .venv first, if there is one)"
    else
        good "MIGraphX for Python $1"
    fi
}

check_amdsmi() {
    if [ -e "$rocm/share/amd_smi/amdsmi/__init__.py" ]; then good "amdsmi, with ROCm's library"
    else bad "no amdsmi in $rocm/share/amd_smi" "sudo apt install amd-smi-lib"
    fi
}

run() { # a command, or its line where nothing is to be done
    printf 'run     %s\n' "$*"
    $dry_run || "$@"
}

made() { # whether an environment's record says that it was made
    grep -q '"status": "ok"' "artifacts/environments/$1.id.json" 2>/dev/null
}

make_environments() {
    local name targets=()
    run make PYTHON="$python" .venv/installed ||
        { bad "the workflow's environment .venv could not be made" "what stands above says why (pip needs its index, or a mirror of it); then call this again"; return; }
    for name in "${environments[@]}"; do targets+=("artifacts/environments/$name.id.json"); done
    run .venv/bin/snakemake --config platform=amd -- "${targets[@]}" ||
        bad "the environments could not be made" "what stands above says why; then call this again"
    $dry_run && return
    for name in "${environments[@]}"; do
        made "$name" || bad "the environment $name could not be made" "logs/environment/$name.log says why; then call this again"
    done
}

tell() { # what, the Python that knows, its program
    local said
    if said=$("$2" -c "$3" 2>&1); then good "$1: $said"
    else bad "$1: $(printf '%s\n' "$said" | tail -n 1)" "$4"
    fi
}

tell_what_is_there() {
    tell "GPU" .venv/bin/python \
        'from ladder import telemetry; gpu = telemetry.open_reader("rocm"); print(gpu.uuid, *gpu.identity().values())' \
        "amd-smi list should list it; docs/amd.md has more"
    tell "PyTorch" .venvs/rocm/bin/python \
        'import torch; assert torch.cuda.is_available(), "it finds no GPU"; print(torch.__version__, torch.cuda.get_device_name())' \
        "see that the driver is at least as new as ROCm 7.2 asks for"
    tell "MIGraphX" .venvs/rocm/bin/python 'import migraphx; migraphx.get_target("gpu"); print(migraphx.__version__)' \
        "sudo apt install migraphx; ROCM_PATH must name the ROCm that it is in"
    # the list of providers says what was built, not what can be loaded
    tell "ONNX Runtime" .venvs/migraphx/bin/python \
        'import ctypes, onnxruntime as o
libraries = o.__path__[0] + "/capi/libonnxruntime_providers_"
ctypes.CDLL(libraries + "shared.so", ctypes.RTLD_GLOBAL); ctypes.CDLL(libraries + "migraphx.so"); print(o.__version__)' \
        "let the loader find ROCm: echo $rocm/lib | sudo tee /etc/ld.so.conf.d/rocm.conf; sudo ldconfig"
}

check_machine
check_driver
check_groups
check_rocm
check_python
check_amdsmi
if $dry_run; then
    echo
    echo "would $([ $failed = 0 ] && echo "go on" || echo "stop here, for $failed failed check(s); without them go on") and"
    make_environments
    exit 0
fi
if [ $failed != 0 ]; then
    echo "$failed check(s) failed; nothing was changed"
    exit 1
fi
make_environments
[ $failed = 0 ] && tell_what_is_there
if [ $failed != 0 ]; then
    echo "$failed part(s) failed"
    exit 1
fi
echo "ready: make bench climbs the AMD ladder"

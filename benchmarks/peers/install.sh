#!/usr/bin/env bash
# Make a virtual environment with the counters that Rooflight is compared with: benchmarks/peers/install.sh DIR
#
# They need one of their own: ptflops, thop and deepspeed ask for packages (torchvision, CUDA wheels) that would
# replace a CPU torch, hence --no-deps, and what they import is named here instead.
set -euo pipefail

directory=${1:?"usage: benchmarks/peers/install.sh DIR"}
python=${PYTHON:-python3}

"$python" -m venv "$directory"
pip=("$directory/bin/python" -m pip install --quiet --disable-pip-version-check)

"${pip[@]}" setuptools wheel numpy
"${pip[@]}" torch==2.13.0
"${pip[@]}" transformers==5.23.0 accelerate==1.15.0
"${pip[@]}" fvcore==0.1.5.post20221221 torchinfo==1.8.0
"${pip[@]}" --no-deps calflops==0.3.2 ptflops==0.7.5 thop==0.1.1.post2209072238
"${pip[@]}" einops hjson msgpack ninja packaging psutil py-cpuinfo pydantic tqdm
DS_BUILD_OPS=0 "${pip[@]}" --no-deps --no-build-isolation deepspeed==0.19.8

"$directory/bin/python" - <<'PYTHON'
import importlib.metadata as metadata

for name in ("torch", "fvcore", "calflops", "torchinfo", "ptflops", "thop", "deepspeed"):
    print(f"{name} {metadata.version(name)}")
PYTHON

#!/usr/bin/env bash
# Fit the models that come with Rooflight: ROOFLIGHT_DATA=path/to/data bash benchmarks/fit_shipped.sh [FOLDER]
# From the tables of benchmarks/shipped_rows.py: estimate-train-time's operators (A100, GH200), NeuSight's (FP32, nine
# GPUs), Vidur's layers (A100, H100), and both collectives; from aiconfigurator's all-gathers; from the profiler's traces; from random ops that we measured
# on an H100 and an H200 (benchmarks/gpu/op_mix.py); and from KernelBench's programs, whose wall times are divided among their ops by
# a first, coarser fit.
# FOLDER, by default src/rooflight/prediction/shipped, is replaced. The models' errors go to
# benchmarks/results/shipped_models.csv (FOLDER.csv); what the command prints belongs on docs/reference/accuracy.md.
set -euo pipefail
cd "$(dirname "$0")/.."
shipped=${1:-src/rooflight/prediction/shipped}
results=benchmarks/results/shipped_models.csv
[ -z "${1:-}" ] || results=$1.csv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${PYTHON:-.venv/bin/python}
# the manifest names files from where all of them lie
ln -s "$(realpath "$ROOFLIGHT_DATA")" "$work/data"
for gpu in h100 h200; do ln -s "$(realpath "benchmarks/results/$gpu/learned")" "$work/$gpu"; done
export ROOFLIGHT_DATA=$work/data
# needs polars: POLARS_PYTHON, by default the same Python
"${POLARS_PYTHON:-$python}" benchmarks/nccl_tables.py "$work/nccl"
mapfile -t tables < <("$python" benchmarks/shipped_rows.py)
mapfile -t traces < <("$python" benchmarks/shipped_rows.py traces)
[ "${#tables[@]}" -gt 0 ]
[ "${#traces[@]}" -gt 0 ]
time "$python" benchmarks/attributed_programs.py "$work/programs" --fit
rm -rf "$shipped"
time "$python" -m rooflight fit "${tables[@]}" "${traces[@]}" "$work/nccl" "$work/h100" "$work/h200" "$work/programs" --out "$shipped" --csv "$work/tables"
cp "$work/tables/models.csv" "$results"
# what measured programs correct of predicted gains goes with the models of single ops
[ -n "${1:-}" ] || "$python" benchmarks/predicted_gains.py fit

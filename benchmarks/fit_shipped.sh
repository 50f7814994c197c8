#!/usr/bin/env bash
# Fit the models that come with Rooflight: ROOFLIGHT_DATA=path/to/data bash benchmarks/fit_shipped.sh
# From the tables of benchmarks/shipped_rows.py: estimate-train-time's operators (A100, GH200), NeuSight's (FP32, nine
# GPUs), Vidur's layers (A100, H100), and both collectives.
set -euo pipefail
cd "$(dirname "$0")/.."
shipped=src/rooflight/prediction/shipped
mapfile -t tables < <(.venv/bin/python benchmarks/shipped_rows.py)
[ "${#tables[@]}" -gt 0 ]
rm -rf "$shipped"
time .venv/bin/rooflight fit "${tables[@]}" --trees-only --out "$shipped" --markdown docs/reference/shipped_models.md
# what measured programs correct of predicted gains goes with the models of single ops
.venv/bin/python benchmarks/predicted_gains.py fit

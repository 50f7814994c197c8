#!/usr/bin/env bash
# Fit the models that come with Rooflight: ROOFLIGHT_DATA=path/to/data bash benchmarks/fit_shipped.sh
# From estimate-train-time's operators (A100, GH200), NeuSight's (FP32, nine GPUs) and Vidur's layers (A100, H100).
set -euo pipefail
cd "$(dirname "$0")/.."
data=${ROOFLIGHT_DATA:?set it to the folder that holds estimate-train-time, neusight and vidur}
shipped=src/rooflight/prediction/shipped
rm -rf "$shipped"
time .venv/bin/rooflight fit \
  "$data"/estimate-train-time/regressors/{Perlmutter,Vista}/operator \
  "$data"/neusight/{train,test,amd_train,amd_test} \
  "$data"/vidur/compute \
  --trees-only --out "$shipped" --markdown docs/shipped_models.md

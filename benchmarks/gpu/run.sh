#!/usr/bin/env bash
# One visit to a CUDA machine: tests, calibration, bytes against counters, models measured and predicted. At most 9 minutes.
#
#   bash benchmarks/gpu/run.sh        results in ${OUT:-benchmarks/results}
#
# Nothing is downloaded. Packages that the machine lacks are taken from wheels in ./.whl, where there is such a folder.
# No clock, power or other setting of the GPU is changed. A part that fails or runs out of time stops no other.
set -u

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
out=${OUT:-benchmarks/results}
mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd) || exit 1
log=$out/log.txt
: >"$log"
python=${PYTHON:-python3}
deadline=$((SECONDS + 530))
names=()
verdicts=()
times=()

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
export ROOFLIGHT_CACHE=$scratch/cache
export ROOFLIGHT_NEED_GPU=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 COLUMNS=140
export PYTHONPATH=src

# part NAME SECONDS COMMAND...: run it within its time and within what is left of the visit
part() {
  local name=$1 limit=$2 left=$((deadline - SECONDS)) start=$SECONDS status
  shift 2
  names+=("$name")
  if ((left < 10)); then
    verdicts+=("skipped: no time left")
    times+=(0)
    return
  fi
  ((limit > left)) && limit=$left
  printf '\n=== %s (at most %s s)\n' "$name" "$limit" | tee -a "$log"
  timeout --kill-after=5 "$limit" "$@" 2>&1 | tee -a "$log"
  status=${PIPESTATUS[0]}
  case $status in
    0) verdicts+=("ok") ;;
    124 | 137) verdicts+=("OUT OF TIME after $limit s") ;;
    *) verdicts+=("FAILED: exit $status") ;;
  esac
  times+=($((SECONDS - start)))
}

rooflight() {
  part "$1" "$2" "$python" -c 'from rooflight.cli.main import main; main()' "${@:3}"
}

install_wheels() {
  "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl
}

if [[ -d .whl ]]; then
  export -f install_wheels
  export python
  part "install .whl" 40 bash -c install_wheels
  export PYTHONPATH=/tmp/site:src
fi

part "nvidia-smi" 20 nvidia-smi --format=csv \
  --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,temperature.gpu,power.draw,power.limit
part "tests" 75 "$python" -m pytest -q -rA -m gpu -p no:cacheprovider -o filterwarnings=default tests/gpu
rooflight "calibrate" 90 calibrate --device cuda --json "$out/calibration.json"
part "bytes against counters" 120 "$python" benchmarks/gpu/bytes_against_counters.py --json "$out/bytes.json" --seconds 95
rooflight "analyze gpt2" 60 analyze gpt2 --device cuda --predict --json "$out/gpt2.json"
rooflight "analyze llama-3.1-8b" 90 analyze llama-3.1-8b --device cuda --step forward --seq 2048 --dtype bf16 --json "$out/llama-3.1-8b.json"
rooflight "analyze resnet-50" 60 analyze resnet-50 --device cuda --predict --json "$out/resnet-50.json"
part "predictions against the clock" 200 "$python" benchmarks/gpu/predictions_against_clock.py --save "$out/sessions" \
  --json "$out/predictions.json" --seconds 150
tar -C "$out" -cf "$out/sessions.tar" sessions && rm -r "$out/sessions"
rooflight "compile-bench" 150 compile-bench gpt2 --quick --json "$out/compile.json"
part "nvidia-smi, after" 15 nvidia-smi --format=csv --query-gpu=clocks.sm,clocks.mem,temperature.gpu,power.draw

{
  printf '\n%-26s %6s  %s\n' part seconds result
  for index in "${!names[@]}"; do
    printf '%-26s %6s  %s\n' "${names[index]}" "${times[index]}" "${verdicts[index]}"
  done
  printf '%-26s %6s\n' total "$SECONDS"
} | tee "$out/summary.txt" | tee -a "$log"

for verdict in "${verdicts[@]}"; do
  [[ $verdict == ok ]] || exit 1
done

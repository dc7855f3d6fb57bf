#!/bin/bash
# Runs windows of a tiny model under compute-sanitizer: tests/bench/sanitizer.sh [SECONDS a tool]. Needs a CUDA card.
# Exit 0: clean; 3: compute-sanitizer is not installed; else something was found, or the time was over (124).
limit=${1:-300}
tool=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [ ! -x "$tool" ]; then
  echo "compute-sanitizer is not installed: racecheck and memcheck were not run"
  exit 3
fi
python -m tests.bench.sanitized || exit 1   # compiles every kernel, so that the tools meet none of the compiler
worst=0
for check in memcheck racecheck; do
  began=$SECONDS
  # Every tensor an allocation of its own, or reads past one would land in the next.
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout "$limit" "$tool" --tool $check --error-exitcode 1 --print-limit 5 \
    python -m tests.bench.sanitized --windows 2 2>&1 | tail -n 15
  code=${PIPESTATUS[0]}
  echo "$check: exit $code after $((SECONDS - began)) s"
  [ "$code" -gt "$worst" ] && worst=$code
done
exit $worst

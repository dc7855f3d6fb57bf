#!/bin/bash
# Runs windows of two small models under compute-sanitizer: tests/bench/sanitizer.sh [SECONDS a run]. Needs a CUDA card.
# Exit 0: clean; 3: compute-sanitizer is not installed; else something was found, or the time was over (124).
limit=${1:-300}
tool=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [ ! -x "$tool" ]; then
  echo "compute-sanitizer is not installed: racecheck and memcheck were not run"
  exit 3
fi
worst=0
for case in "base4 --windows 2" "builtin --windows 2 --homes half"; do
  # shellcheck disable=SC2086  # the words of a case are its arguments
  python -m tests.bench.sanitized --case $case || exit 1   # compiles every kernel: the tools meet none of the compiler
  for check in memcheck racecheck; do
    began=$SECONDS
    # Every tensor an allocation of its own, or reads past one would land in the next.
    # shellcheck disable=SC2086
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout "$limit" "$tool" --tool $check --error-exitcode 1 --print-limit 5 \
      python -m tests.bench.sanitized --case $case 2>&1 | tail -n 15
    code=${PIPESTATUS[0]}
    echo "$check of $case: exit $code after $((SECONDS - began)) s"
    [ "$code" -gt "$worst" ] && worst=$code
  done
done
exit $worst

#!/bin/sh
# Builds the runtime with sanitizers and runs kernel_check and a stress of eight threads: sanitize_runtime.sh [PYTHON]
# Every report ends its process, and with it this script.
set -e
cd "$(dirname "$0")/../.."
python="$(command -v "${1:-python}")"
case "$python" in /*) ;; *) python="$PWD/$python" ;; esac
PATH="$(dirname "$python"):$PATH"
compiler="${CXX:-c++}"
export ASAN_OPTIONS=detect_leaks=0:alloc_dealloc_mismatch=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1
for sanitizers in address,undefined thread; do
  build="build/sanitize-$sanitizers"
  case "$sanitizers" in thread) library=libtsan.so ;; *) library=libasan.so ;; esac
  cmake -S . -B "$build" -G Ninja -DTERSIFY_SANITIZE="$sanitizers" -DCMAKE_BUILD_TYPE=Release \
        -DPython_EXECUTABLE="$python" > /dev/null
  cmake --build "$build" --target _runtime kernel_check
  "$build/csrc/runtime/kernel_check" --quick > "$build/kernel_check.txt" || { cat "$build/kernel_check.txt"; exit 1; }
  tail -n 1 "$build/kernel_check.txt"
  LD_PRELOAD="$("$compiler" -print-file-name="$library") $("$compiler" -print-file-name=libstdc++.so)" \
    "$python" tests/runtime/runtime_stress.py "$build"/csrc/runtime/_runtime*.so
  echo "$sanitizers: no report"
done

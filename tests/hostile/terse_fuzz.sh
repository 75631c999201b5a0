#!/bin/sh
# Builds the coders with AddressSanitizer and UBSan, and opens broken files with them: terse_fuzz.sh [PYTHON] [FILES]
set -e
cd "$(dirname "$0")/../.."
python="$(command -v "${1:-python}")"
case "$python" in /*) ;; *) python="$PWD/$python" ;; esac
PATH="$(dirname "$python"):$PATH"
cmake -S . -B build/fuzz -G Ninja -DTERSIFY_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo \
      -DPython_EXECUTABLE="$python" > /dev/null
cmake --build build/fuzz --target _codec
compiler="${CXX:-c++}"
LD_PRELOAD="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libstdc++.so)" \
ASAN_OPTIONS=detect_leaks=0:alloc_dealloc_mismatch=0:max_allocation_size_mb=1024 \
UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
PYTHONPATH=src "$python" tests/hostile/terse_fuzz.py --no-memory-limit --files "${2:-200000}" \
      --extension build/fuzz/csrc/codec/_codec*.so

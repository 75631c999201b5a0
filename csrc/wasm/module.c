/* A module needs one source of its own; all its functions are those of the library. */
#include "tersify.h"

const char *tersify_wasm_version(void) { return tersify_version(); }

/* libtersify: run a .terse file that has a plan, without Python.
 *
 * All functions may be called from any thread; calls of one session wait for each other. No function throws, and none
 * reads beyond its arguments whatever the file holds. A function that fails returns a code, and tersify_last_error()
 * then says in one sentence what was wrong and what to do about it.
 */
#ifndef TERSIFY_H
#define TERSIFY_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && defined(TERSIFY_SHARED)
#define TERSIFY_API __declspec(dllimport)
#elif defined(__GNUC__)
#define TERSIFY_API __attribute__((visibility("default")))
#else
#define TERSIFY_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  TERSIFY_OK = 0,
  TERSIFY_CANNOT_READ = 1,   /* no such file, or it may not be read */
  TERSIFY_BAD_FILE = 2,      /* damaged, hostile, or of a newer format */
  TERSIFY_NO_PLAN = 3,       /* weights alone: `tersify plan` adds what is missing */
  TERSIFY_BAD_ARGUMENT = 4,  /* a null pointer, another size, an unknown name */
  TERSIFY_TOO_LARGE = 5,     /* more memory than the limit allows */
  TERSIFY_NOT_FINITE = 6,    /* an input holds NaN or infinity, or a curve makes one */
  TERSIFY_NO_MEMORY = 7,
  TERSIFY_INTERNAL = 8
} tersify_status;

typedef enum { TERSIFY_FLOAT32 = 0, TERSIFY_INT64 = 1 } tersify_dtype;

typedef struct tersify_model tersify_model;
typedef struct tersify_session tersify_session;

/* An input or output. A size of -1 is the batch, one of -2 changes with the length: tersify_sizes says how. The pointers live as long as the model. */
typedef struct {
  const char* name;
  tersify_dtype dtype;
  size_t rank;
  const int64_t* shape;
} tersify_port;

/* What the file says of itself. The pointers live as long as the model. */
typedef struct {
  const char* precision;   /* "fp32" or "int8" */
  int64_t batch;           /* the only one that it runs, or 0 for any */
  size_t inputs, outputs;
  size_t labels;           /* names of classes, or 0 */
  size_t image_channels;   /* of image_mean and image_std, or 0: (byte / 255 - mean) / std goes in */
  const float *image_mean, *image_std;
  uint64_t file_bytes;
} tersify_facts;

typedef struct {
  int threads;         /* 0: one */
  const char* isa;     /* null: the best of this CPU; else "portable", "avx2", "neon" and others */
  uint64_t max_bytes;  /* of activations; 0: 2 GiB */
} tersify_options;

/* `count` numbers at `data`: floats, or 64-bit whole numbers where the port says so. */
typedef struct {
  void* data;
  size_t count;
} tersify_tensor;

TERSIFY_API const char* tersify_version(void);
/* Of the last call of this thread that failed. */
TERSIFY_API const char* tersify_last_error(void);

/* max_bytes: what decoding may take, 0 for 2 GiB. Memory is copied. */
TERSIFY_API tersify_status tersify_open(const char* path, uint64_t max_bytes, tersify_model** model);
TERSIFY_API tersify_status tersify_open_memory(const void* data, size_t size, uint64_t max_bytes,
                                               tersify_model** model);
/* Sessions of a closed model go on. Null is allowed. */
TERSIFY_API void tersify_close(tersify_model* model);

TERSIFY_API tersify_status tersify_describe(const tersify_model* model, tersify_facts* facts);
TERSIFY_API tersify_status tersify_input(const tersify_model* model, size_t number, tersify_port* port);
TERSIFY_API tersify_status tersify_output(const tersify_model* model, size_t number, tersify_port* port);
/* Which lengths the plan runs: least, step and most, or three zeros where it has one length alone. */
TERSIFY_API tersify_status tersify_lengths(const tersify_model* model, int64_t lengths[3]);
/* The sizes of an output, or of an input where `output` is 0, for a batch and, where the plan leaves it free, a length:
 * as many as the port's rank, written to `shape`. What the plan does not run is refused, and the sentence says what it
 * runs. */
TERSIFY_API tersify_status tersify_sizes(const tersify_model* model, int output, size_t number, int64_t batch,
                                         int64_t length, int64_t* shape);
/* The name of a class; null where there is none. */
TERSIFY_API const char* tersify_label(const tersify_model* model, size_t number);

/* options may be null. */
TERSIFY_API tersify_status tersify_session_new(const tersify_model* model, const tersify_options* options,
                                               tersify_session** session);
TERSIFY_API void tersify_session_free(tersify_session* session);

/* Tensors in the order of the ports, of exactly the sizes that the ports have with this batch. Where the length is free,
 * it is what the inputs have. */
TERSIFY_API tersify_status tersify_run(tersify_session* session, int64_t batch, const tersify_tensor* inputs,
                                       const tersify_tensor* outputs);
/* The same, and calls `step` with the kernel and the microseconds of every step. */
TERSIFY_API tersify_status tersify_profile(tersify_session* session, int64_t batch, const tersify_tensor* inputs,
                                           const tersify_tensor* outputs,
                                           void (*step)(void* user, const char* kernel, double microseconds),
                                           void* user);

#ifdef __cplusplus
}
#endif
#endif

/* cc first.c $(pkg-config --cflags --libs tersify) && ./a.out net.terse: one item of zeros through the network. */
#include <stdio.h>
#include <stdlib.h>
#include <tersify.h>

static size_t count_of(const tersify_port* port) {
  size_t count = 1;
  for (size_t i = 0; i < port->rank; ++i) count *= port->shape[i] < 0 ? 1 : (size_t)port->shape[i];
  return count;
}

int main(int argc, char** argv) {
  tersify_model* model = NULL;
  tersify_session* session = NULL;
  tersify_facts facts;
  tersify_port in, out;
  const char* problem = argc == 2 ? NULL : "usage: first FILE.terse";
  tersify_status status = TERSIFY_BAD_ARGUMENT;
  if (argc == 2) status = tersify_open(argv[1], 0, &model);
  if (status == TERSIFY_OK) status = tersify_describe(model, &facts);
  if (status == TERSIFY_OK && (facts.inputs != 1 || facts.outputs != 1)) {
    status = TERSIFY_BAD_ARGUMENT; /* tersify_run takes a tensor for every port */
    problem = "this example is for networks of one input and one output; tersify-run runs the others";
  }
  if (status == TERSIFY_OK) status = tersify_input(model, 0, &in);
  if (status == TERSIFY_OK) status = tersify_output(model, 0, &out);
  if (status == TERSIFY_OK) status = tersify_session_new(model, NULL, &session);
  if (status == TERSIFY_OK) {
    tersify_tensor given = {calloc(count_of(&in), in.dtype == TERSIFY_INT64 ? 8 : 4), count_of(&in)};
    tersify_tensor made = {calloc(count_of(&out), 4), count_of(&out)};
    status = tersify_run(session, 1, &given, &made);
    for (size_t i = 0; status == TERSIFY_OK && i < made.count; ++i) printf("%g\n", ((float*)made.data)[i]);
    free(given.data);
    free(made.data);
  }
  if (status != TERSIFY_OK) fprintf(stderr, "%s\n", problem ? problem : tersify_last_error());
  tersify_session_free(session);
  tersify_close(model);
  return status == TERSIFY_OK ? 0 : 1;
}

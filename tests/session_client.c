/* A client of TensorFlow's C API: loads a SavedModel, answers one request several times, and prints what came out.

   session_client MODEL_DIR REQUESTS WARM_UP QUIET INPUTS OUTPUTS {OP INDEX TYPE DIMS FILE} ... {OP INDEX} ...

   An input's TYPE is uint8, int32 or string. DIMS is "32,28,28,1", or "" for a scalar. FILE has its bytes; of a string
   input, every element is the whole file. A line of output for each request after WARM_UP unprinted ones: its
   milliseconds, then, unless QUIET is 1, each output's values (float, int64 or string), outputs apart by tabs. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/tf_tstring.h"

#define MOST 8

static void fail(const char *what, const char *why) {
  fprintf(stderr, "error: %s: %s\n", what, why);
  exit(1);
}

static void check(TF_Status *status, const char *what) {
  if (TF_GetCode(status) != TF_OK) fail(what, TF_Message(status));
}

static char *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (!file) fail(path, "cannot be opened");
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  rewind(file);
  char *contents = malloc(*size + 1);
  if (fread(contents, 1, *size, file) != *size) fail(path, "cannot be read");
  fclose(file);
  return contents;
}

static int parse_dims(const char *text, int64_t *dims) {
  int rank = 0;
  while (*text && rank < MOST) {
    char *end;
    dims[rank++] = strtoll(text, &end, 10);
    text = *end == ',' ? end + 1 : end;
  }
  return rank;
}

static TF_Tensor *read_tensor(const char *type, const char *dims_text, const char *path) {
  int64_t dims[MOST], elements = 1;
  int rank = parse_dims(dims_text, dims);
  for (int i = 0; i < rank; i++) elements *= dims[i];
  size_t size;
  char *contents = read_file(path, &size);
  TF_Tensor *tensor;
  if (strcmp(type, "string") == 0) {
    tensor = TF_AllocateTensor(TF_STRING, dims, rank, (size_t)elements * sizeof(TF_TString));
    TF_TString *strings = TF_TensorData(tensor);
    for (int64_t i = 0; i < elements; i++) {
      TF_StringInit(&strings[i]);
      TF_StringCopy(&strings[i], contents, size);
    }
  } else {
    tensor = TF_AllocateTensor(strcmp(type, "int32") == 0 ? TF_INT32 : TF_UINT8, dims, rank, size);
    if (TF_TensorElementCount(tensor) * (int64_t)TF_DataTypeSize(TF_TensorType(tensor)) != (int64_t)size)
      fail(path, "has another size than the dimensions say");
    memcpy(TF_TensorData(tensor), contents, size);
  }
  free(contents);
  return tensor;
}

static TF_Output find(TF_Graph *graph, const char *op, const char *index) {
  TF_Output output = {TF_GraphOperationByName(graph, op), atoi(index)};
  if (!output.oper) fail(op, "is not in the graph");
  return output;
}

static void print_tensor(TF_Tensor *tensor) {
  const void *data = TF_TensorData(tensor);
  for (int64_t i = 0; i < TF_TensorElementCount(tensor); i++) {
    const char *space = i ? " " : "";
    if (TF_TensorType(tensor) == TF_FLOAT) {
      printf("%s%.9g", space, ((const float *)data)[i]);
    } else if (TF_TensorType(tensor) == TF_INT64) {
      printf("%s%lld", space, (long long)((const int64_t *)data)[i]);
    } else {
      const TF_TString *text = &((const TF_TString *)data)[i];
      printf("%s%.*s", space, (int)TF_StringGetSize(text), TF_StringGetDataPointer(text));
    }
  }
}

int main(int argc, char **argv) {
  if (argc < 7) fail(argv[0], "expected MODEL_DIR REQUESTS WARM_UP QUIET INPUTS OUTPUTS ...");
  int requests = atoi(argv[2]), warm_up = atoi(argv[3]), quiet = atoi(argv[4]);
  int inputs = atoi(argv[5]), outputs = atoi(argv[6]);
  if (inputs > MOST || outputs > MOST || argc != 7 + 5 * inputs + 2 * outputs) fail(argv[0], "arguments do not fit");

  TF_Status *status = TF_NewStatus();
  TF_Graph *graph = TF_NewGraph();
  TF_SessionOptions *options = TF_NewSessionOptions();
  const char *tags[] = {"serve"};
  TF_Session *session = TF_LoadSessionFromSavedModel(options, NULL, argv[1], tags, 1, graph, NULL, status);
  check(status, "loading");

  TF_Output in[MOST], out[MOST];
  TF_Tensor *given[MOST], *answers[MOST];
  for (int i = 0; i < inputs; i++) {
    char **input = argv + 7 + 5 * i;
    in[i] = find(graph, input[0], input[1]);
    given[i] = read_tensor(input[2], input[3], input[4]);
  }
  for (int i = 0; i < outputs; i++) {
    char **output = argv + 7 + 5 * inputs + 2 * i;
    out[i] = find(graph, output[0], output[1]);
  }
  for (int request = -warm_up; request < requests; request++) {
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    TF_SessionRun(session, NULL, in, given, inputs, out, answers, outputs, NULL, 0, NULL, status);
    clock_gettime(CLOCK_MONOTONIC, &end);
    check(status, "running");
    if (request >= 0) {
      printf("%.6f", 1e3 * (double)(end.tv_sec - start.tv_sec) + 1e-6 * (double)(end.tv_nsec - start.tv_nsec));
      for (int i = 0; i < outputs && !quiet; i++) {
        printf("\t");
        print_tensor(answers[i]);
      }
      printf("\n");
    }
    for (int i = 0; i < outputs; i++) TF_DeleteTensor(answers[i]);
  }
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  return 0;
}

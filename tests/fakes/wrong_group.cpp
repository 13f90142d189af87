// A library for LD_PRELOAD that plants a wrong group of ranks: rank $KINTSUGI_WRONG_RANK of MPI
// gives the color $KINTSUGI_WRONG_COLOR of a split as 0. The handles of MPI are only passed on, so
// that no header of it is needed.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

namespace {

bool equal(const char* a, const char* b) {
  return a != nullptr && b != nullptr && strcmp(a, b) == 0;
}

}  // namespace

extern "C" int MPI_Comm_split(void* communicator, int color, int key, void** result) {
  using Split = int (*)(void*, int, int, void**);
  static const auto split = reinterpret_cast<Split>(dlsym(RTLD_NEXT, "MPI_Comm_split"));
  const char* const wrong = getenv("KINTSUGI_WRONG_COLOR");
  if (wrong != nullptr && color == atoi(wrong) &&
      equal(getenv("KINTSUGI_WRONG_RANK"), getenv("OMPI_COMM_WORLD_RANK")))
    color = 0;
  return split(communicator, color, key, result);
}

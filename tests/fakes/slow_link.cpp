// A library for LD_PRELOAD that slows down the links of a rank: rank $KINTSUGI_SLOW_RANK of Slurm
// or Open MPI takes part in all-gathers of many bytes at 3 MB/s, a fraction of what busy cores
// reach. The handles of MPI are only passed on, so that no header of it is needed.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace {

bool is_slow() {
  const char* const slow = getenv("KINTSUGI_SLOW_RANK");
  const char* rank = getenv("SLURM_PROCID");
  if (rank == nullptr) rank = getenv("OMPI_COMM_WORLD_RANK");
  return slow != nullptr && rank != nullptr && strcmp(rank, slow) == 0;
}

}  // namespace

extern "C" int MPI_Iallgather(const void* sent, int bytes, void* type, void* received, int count,
                              void* received_type, void* communicator, void** request) {
  using Gather = int (*)(const void*, int, void*, void*, int, void*, void*, void**);
  static const auto gather = reinterpret_cast<Gather>(dlsym(RTLD_NEXT, "MPI_Iallgather"));
  static const bool slow = is_slow();
  if (slow && bytes >= 65536) usleep(static_cast<useconds_t>(bytes) / 3);
  return gather(sent, bytes, type, received, count, received_type, communicator, request);
}

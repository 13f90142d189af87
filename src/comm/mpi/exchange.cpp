#include "comm/mpi/exchange.h"

#include <algorithm>

namespace kintsugi {
namespace {

// MPI counts in int, so large messages are split.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 30;

}  // namespace

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  failure("{} failed: {}", call, text);
}

bool Exchange::advance() {
  for (;;) {
    int arrived = 1;
    if (!requests_.empty())
      check_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &arrived,
                            MPI_STATUSES_IGNORE),
                "MPI_Testall");
    if (!arrived) return false;
    requests_.clear();
    if (!next_round()) return true;
  }
}

void Exchange::send(const void* data, std::int64_t bytes, int to) {
  bytes_sent_ += bytes;
  for (std::int64_t begin = 0; begin < bytes; begin += kMaxBytes)
    check_mpi(MPI_Isend(static_cast<const std::byte*>(data) + begin,
                        static_cast<int>(std::min(kMaxBytes, bytes - begin)), MPI_BYTE, to, tag_,
                        group_.comm, &requests_.emplace_back()),
              "MPI_Isend");
}

void Exchange::receive(void* data, std::int64_t bytes, int from) {
  for (std::int64_t begin = 0; begin < bytes; begin += kMaxBytes)
    check_mpi(MPI_Irecv(static_cast<std::byte*>(data) + begin,
                        static_cast<int>(std::min(kMaxBytes, bytes - begin)), MPI_BYTE, from, tag_,
                        group_.comm, &requests_.emplace_back()),
              "MPI_Irecv");
}

}  // namespace kintsugi

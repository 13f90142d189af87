#pragma once

#include <mpi.h>

#include <vector>

#include "comm/progress_thread.h"

namespace kintsugi {

void check_mpi(int code, const char* call);  // Failure with MPI's own words

// What a communicator's operations share. Its collectives run one at a time, so one scratch does.
struct MpiGroup {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  std::vector<std::byte> scratch;
};

inline constexpr int kCollectiveTag = 1;
inline constexpr int kMessageTag = 2;

// An operation made of rounds of messages; between two rounds it computes.
class Exchange : public Operation {
 public:
  Exchange(MpiGroup& group, int tag) : group_(group), tag_(tag) {}
  bool advance() final;

 protected:
  // Called when the messages of the round before have arrived: posts the next round's with send()
  // and receive(), or returns false if there is none. A round may be empty.
  virtual bool next_round() = 0;

  void send(const void* data, std::int64_t bytes, int to);
  void receive(void* data, std::int64_t bytes, int from);
  MpiGroup& group() const { return group_; }

 private:
  MpiGroup& group_;
  const int tag_;
  std::vector<MPI_Request> requests_;
};

}  // namespace kintsugi

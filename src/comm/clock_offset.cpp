#include "comm/clock_offset.h"

#include <limits>

#include "comm/exchange.h"

namespace kintsugi {
namespace {

constexpr int kRoundTrips = 8;

void answer(Communicator& group, int rank, const std::function<double()>& now) {
  for (int i = 0; i < kRoundTrips; ++i) {
    double value = 0;
    const Tensor message(&value, DType::F64, {1});
    group.wait(group.receive(message, rank));
    value = now();
    group.wait(group.send(message, rank));
  }
}

double ask(Communicator& group, const std::function<double()>& now) {
  double shortest = std::numeric_limits<double>::infinity(), offset = 0;
  for (int i = 0; i < kRoundTrips; ++i) {
    double value = 0;
    const Tensor message(&value, DType::F64, {1});
    const double before = now();
    group.wait(group.send(message, 0));
    group.wait(group.receive(message, 0));
    const double after = now();
    if (after - before >= shortest) continue;
    shortest = after - before;
    offset = value - (before + after) / 2;
  }
  return offset;
}

}  // namespace

double clock_offset(Communicator& group, const std::string& host,
                    const std::function<double()>& now, const std::function<bool(int)>& asks) {
  const std::vector<std::string> hosts = gather_texts(group, host);
  double offset = 0;
  for (int rank = 1; rank < group.size(); ++rank) {
    if (hosts[static_cast<std::size_t>(rank)] == hosts.front() || (asks && !asks(rank))) continue;
    if (group.rank() == 0) answer(group, rank, now);
    if (group.rank() == rank) offset = ask(group, now);
  }
  return offset;
}

}  // namespace kintsugi

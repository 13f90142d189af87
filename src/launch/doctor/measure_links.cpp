#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "launch/doctor/measure.h"
#include "tensor/arena.h"

namespace kintsugi {
namespace {

using Pairs = std::vector<std::pair<int, int>>;  // of ranks, the lower first

constexpr std::int64_t kProbeBytes = 64 << 10;
constexpr int kTimedMessages = 5;  // of which the fastest counts

// The bytes that a rank sends; no two neighbours send the same.
std::vector<std::uint8_t> message_of(int rank, std::int64_t bytes) {
  std::vector<std::uint8_t> message(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < message.size(); ++i)
    message[i] =
        static_cast<std::uint8_t>(i * 131 + (i >> 8) + static_cast<std::size_t>(rank) * 17);
  return message;
}

// The pairs of one round inside all nodes, or between nodes: rank i of a node with rank i of its
// neighbour.
std::vector<Pairs> rounds_of(const NodeGroups& nodes, bool between) {
  std::vector<Pairs> rounds;
  const auto add = [&](std::size_t round, int a, int b) {
    if (rounds.size() <= round) rounds.resize(round + 1);
    rounds[round].emplace_back(std::min(a, b), std::max(a, b));
  };
  const auto ring = [&](int n, const auto& use) {
    const auto pairs = ring_rounds(n);
    for (std::size_t round = 0; round < pairs.size(); ++round)
      for (const auto& [a, b] : pairs[round])
        use(round, static_cast<std::size_t>(a), static_cast<std::size_t>(b));
  };
  if (between) {
    ring(static_cast<int>(nodes.ranks.size()),
         [&](std::size_t round, std::size_t a, std::size_t b) {
           const std::vector<int>&left = nodes.ranks[a], &right = nodes.ranks[b];
           for (std::size_t i = 0; i < std::min(left.size(), right.size()); ++i)
             add(round, left[i], right[i]);
         });
    return rounds;
  }
  for (const std::vector<int>& node : nodes.ranks)
    ring(static_cast<int>(node.size()),
         [&](std::size_t round, std::size_t a, std::size_t b) { add(round, node[a], node[b]); });
  return rounds;
}

class PairExchange {
 public:
  PairExchange(World& devices, Communicator& control, Backend& backend, const LinkLoad& load,
               const SecondsClock& now)
      : devices_(devices),
        control_(control),
        backend_(backend),
        load_(load),
        now_(now),
        arena_(backend) {
    const auto buffer = [&](std::int64_t bytes) {
      return arena_.allocate(Region::Communication, "doctor", DType::U8, {bytes});
    };
    sent_ = buffer(load.bytes);
    received_ = buffer(2 * load.bytes);
    backend.upload(sent_, message_of(devices.rank(), load.bytes).data());
  }

  // All ranks call it; some may have no partner in a round.
  void run(const std::vector<Pairs>& rounds, bool between, std::vector<PairRate>& rates) {
    std::vector<Meeting> meetings;
    for (const Pairs& pairs : rounds) meetings.push_back(meeting_in(pairs));
    const std::int64_t bytes = size_for(meetings);
    for (const Meeting& meeting : meetings) {
      if (!meeting.is_paired) continue;
      const PairRate rate = rate_of(meeting, between, bytes);
      if (rate.first == devices_.rank() || rate.wrong) rates.push_back(rate);
    }
  }

 private:
  struct Meeting {
    std::unique_ptr<Communicator> group;
    std::pair<int, int> ranks;
    bool is_paired = false;
  };

  Meeting meeting_in(const Pairs& pairs) {
    const int rank = devices_.rank();
    const auto mine = std::find_if(pairs.begin(), pairs.end(), [&](const auto& pair) {
      return pair.first == rank || pair.second == rank;
    });
    const bool is_paired = mine != pairs.end();
    const auto color = static_cast<int>(mine - pairs.begin()) + (is_paired ? 0 : rank);
    return {devices_.split(load_.name, color, rank), is_paired ? *mine : Pairs::value_type(),
            is_paired};
  }
  // What the slowest pair of all rounds can exchange in time, so that rates are comparable: small
  // messages reach lower ones.
  std::int64_t size_for(const std::vector<Meeting>& meetings) {
    const std::int64_t probe = std::min(load_.bytes, kProbeBytes);
    double slowest = 0;
    for (const Meeting& meeting : meetings) {
      if (!meeting.is_paired) continue;
      seconds_of(*meeting.group, probe);  // connects
      slowest = std::max(slowest, best_of(*meeting.group, probe));
    }
    control_.wait(control_.all_reduce(Tensor(&slowest, DType::F64, {1}), ReduceOp::Max));
    const double fitting =
        static_cast<double>(probe) * load_.seconds / kTimedMessages / std::max(slowest, 1e-9);
    return static_cast<std::int64_t>(
        std::clamp(fitting, static_cast<double>(probe), static_cast<double>(load_.bytes)));
  }
  PairRate rate_of(const Meeting& meeting, bool between, std::int64_t bytes) {
    const auto [first, second] = meeting.ranks;
    const double best = best_of(*meeting.group, bytes);
    const int partner = first == devices_.rank() ? second : first;
    const bool wrong = !holds_message_of(partner, meeting.group->rank() == 0 ? 1 : 0, bytes);
    return {.first = first,
            .second = second,
            .between_nodes = between,
            .bytes_per_s = static_cast<double>(bytes) / longest_of(*meeting.group, best),
            .wrong = wrong};
  }
  double best_of(Communicator& group, std::int64_t bytes) {
    double best = 0;
    for (int i = 0; i < kTimedMessages; ++i) {
      const double seconds = seconds_of(group, bytes);
      best = i == 0 ? seconds : std::min(best, seconds);
    }
    return best;
  }
  // An all-gather of two ranks: each sends and receives `bytes`.
  double seconds_of(Communicator& group, std::int64_t bytes) {
    backend_.synchronize();
    group.barrier();
    const double begin = now_();
    group.wait(group.all_gather(received_.rows(0, 2 * bytes), sent_.rows(0, bytes)));
    backend_.synchronize();
    return std::max(now_() - begin, 1e-9);
  }
  // A rank whose core is taken away between the barrier and its clock measures too little.
  double longest_of(Communicator& group, double seconds) {
    constexpr std::int64_t kBytes = sizeof(double);
    std::array<double, 2> both = {};
    backend_.upload(sent_.rows(0, kBytes), &seconds);
    group.wait(group.all_gather(received_.rows(0, 2 * kBytes), sent_.rows(0, kBytes)));
    backend_.download(both.data(), received_.rows(0, 2 * kBytes));
    backend_.upload(sent_.rows(0, kBytes), message_of(devices_.rank(), kBytes).data());
    return std::max(both[0], both[1]);
  }
  bool holds_message_of(int rank, std::int64_t half, std::int64_t bytes) {
    std::vector<std::uint8_t> got(static_cast<std::size_t>(bytes));
    backend_.download(got.data(), received_.rows(half * bytes, bytes));
    return got == message_of(rank, bytes);
  }

  World& devices_;
  Communicator& control_;
  Backend& backend_;
  const LinkLoad load_;
  const SecondsClock& now_;
  Arena arena_;
  Tensor sent_, received_;
};

}  // namespace

std::vector<PairRate> measure_links(World& devices, Communicator& control, Backend& backend,
                                    const NodeGroups& nodes, const LinkLoad& load,
                                    const SecondsClock& now) {
  std::vector<PairRate> rates;
  PairExchange exchange(devices, control, backend, load, now);
  for (const bool between : {false, true})
    if (between ? load.between_nodes : load.inside_nodes)
      exchange.run(rounds_of(nodes, between), between, rates);
  return rates;
}

std::string check_all_reduce(World& devices, Backend& backend) {
  constexpr int kNumbers = 64, kCycle = 1024;
  const auto number = [](int rank, int i) { return static_cast<float>(1 + (rank + i) % kCycle); };
  const auto group = devices.split("doctor sum", 0, devices.rank());
  std::vector<float> numbers(kNumbers), sums(kNumbers, 0);
  for (int i = 0; i < kNumbers; ++i) {
    numbers[static_cast<std::size_t>(i)] = number(devices.rank(), i);
    // Whole numbers below 2^24 up to 32,000 ranks: exact in any order.
    for (int rank = 0; rank < devices.size(); ++rank)
      sums[static_cast<std::size_t>(i)] += number(rank, i);
  }
  Arena arena(backend);
  const Tensor x = arena.allocate(Region::Communication, "doctor", DType::F32, {kNumbers});
  backend.upload(x, numbers.data());
  group->wait(group->all_reduce(x, ReduceOp::Sum));
  backend.download(numbers.data(), x);
  for (std::size_t i = 0; i < sums.size(); ++i)
    if (numbers[i] != sums[i])
      return fmt::format("an all-reduce over all ranks gives {} instead of {}", numbers[i],
                         sums[i]);
  return "";
}

}  // namespace kintsugi

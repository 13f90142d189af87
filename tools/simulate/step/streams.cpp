#include "simulate/step/streams.h"

#include <algorithm>

namespace kintsugi {

double ItemTime::exposed_s() const {
  double sum = 0;
  for (const auto& [group, seconds] : exposed) sum += seconds;
  return sum;
}

ItemTime& operator+=(ItemTime& sum, const ItemTime& other) {
  sum.total_s += other.total_s;
  for (const auto& [group, seconds] : other.exposed) sum.exposed[group] += seconds;
  return sum;
}

namespace {

struct Started {
  double end = 0;
  const std::string* group = nullptr;
};

ItemTime time_of(const StepReplay& replay, const StepReplay::Items& items,
                 const std::vector<ItemTime>& pieces, const std::vector<double>& call_s) {
  using Kind = StepReplay::Item::Kind;
  ItemTime time;
  double& now = time.total_s;
  double wire = 0;  // when the communication stream is free
  std::map<std::int64_t, Started> started;
  for (const StepReplay::Item& item : items) switch (item.kind) {
      case Kind::Compute:
        now += item.value;
        break;
      case Kind::Piece: {
        ItemTime piece = pieces[item.index];
        piece.total_s *= item.value;
        for (auto& [group, seconds] : piece.exposed) seconds *= item.value;
        time += piece;
        break;
      }
      case Kind::Start:
        wire = std::max(wire, now) + call_s[item.index];
        started[item.ticket] = {wire, &replay.groups[replay.calls[item.index].group].name};
        break;
      case Kind::Wait: {
        const Started& call = started.at(item.ticket);
        time.exposed[*call.group] += std::max(0.0, call.end - now);
        now = std::max(now, call.end);
        break;
      }
    }
  return time;
}

}  // namespace

std::vector<std::vector<ChunkTime>> chunk_times(const StepReplay& replay,
                                                const std::vector<double>& call_s) {
  std::vector<ItemTime> pieces;
  for (const StepReplay::Items& piece : replay.pieces)
    pieces.push_back(time_of(replay, piece, {}, call_s));
  std::vector<std::vector<ChunkTime>> times;
  for (const StepReplay::Stage& stage : replay.stages) {
    times.emplace_back();
    for (const StepReplay::Chunk& chunk : stage.chunks)
      times.back().push_back({time_of(replay, chunk.forward, pieces, call_s),
                              time_of(replay, chunk.backward, pieces, call_s)});
  }
  return times;
}

}  // namespace kintsugi

#include "backend/gpu/transfers.h"

#include <utility>

namespace kintsugi::gpu {

Transfers::Copy::Copy() {
  ready = create_event(Timing::Off);
  begin = create_event();
  end = create_event();
}

Transfers::Copy::~Copy() {
  destroy(ready);
  destroy(begin);
  destroy(end);
}

Transfers::Transfers() {
  for (Stream& lane : lanes_) lane = create_stream();
}

Transfers::~Transfers() {
  for (const Stream lane : lanes_) {
    drain(lane);
    destroy(lane);
  }
}

void Transfers::count(const Copy& copy) {
  Backend::TransferTotals& total = totals_[static_cast<std::size_t>(copy.direction)];
  total.bytes += static_cast<std::int64_t>(copy.bytes);
  total.busy_s += 1e-3 * elapsed_ms(copy.begin, copy.end);
}

std::unique_ptr<Transfers::Copy> Transfers::free_copy() {
  if (unfinished_.empty()) return std::make_unique<Copy>();
  const Event oldest = unfinished_.front()->end;
  if (unfinished_.size() < kMaxUnfinished && !is_done(oldest)) return std::make_unique<Copy>();
  synchronize(oldest);
  std::unique_ptr<Copy> copy = std::move(unfinished_.front());
  unfinished_.pop_front();
  count(*copy);
  return copy;
}

Backend::Transfer Transfers::start(Direction direction, void* destination, const void* source,
                                   std::size_t bytes, Stream compute) {
  KINTSUGI_CHECK(!is_capturing(compute), "transfer started while a graph is captured");
  if (bytes == 0) return {};
  std::unique_ptr<Copy> copy = free_copy();
  copy->direction = direction;
  copy->bytes = bytes;
  const Stream stream = lane(direction);
  record(copy->ready, compute);
  gpu::wait(stream, copy->ready);
  record(copy->begin, stream);
  gpu::copy(destination, source, bytes,
            direction == Direction::ToDevice ? gpu::Copy::ToDevice : gpu::Copy::ToHost, stream);
  record(copy->end, stream);
  pending_[++tickets_] = std::move(copy);
  return {tickets_};
}

std::unique_ptr<Transfers::Copy> Transfers::take(Backend::Transfer transfer) {
  const auto found = pending_.find(transfer.ticket);
  KINTSUGI_CHECK(found != pending_.end(), "transfer {} was waited for before, or never started",
                 transfer.ticket);
  std::unique_ptr<Copy> copy = std::move(found->second);
  pending_.erase(found);
  return copy;
}

void Transfers::wait(Backend::Transfer transfer, Stream compute) {
  if (transfer.ticket == 0) return;
  std::unique_ptr<Copy> copy = take(transfer);
  gpu::wait(compute, copy->end);
  unfinished_.push_back(std::move(copy));
}

void Transfers::finish(Backend::Transfer transfer) {
  if (transfer.ticket == 0) return;
  std::unique_ptr<Copy> copy = take(transfer);
  synchronize(copy->end);
  unfinished_.push_back(std::move(copy));
}

Backend::LinkTotals Transfers::totals() {
  while (!unfinished_.empty()) {
    synchronize(unfinished_.front()->end);
    count(*unfinished_.front());
    unfinished_.pop_front();
  }
  return {totals_[0], totals_[1]};
}

}  // namespace kintsugi::gpu

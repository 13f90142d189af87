#include "serve/step_message.h"

#include <span>

#include "tensor/arena.h"

namespace kintsugi {
namespace {

constexpr std::int32_t kEnd = -1;

// A copy of integers in device memory.
class DeviceIntegers {
 public:
  DeviceIntegers(Backend& backend, std::vector<std::int32_t>& host)
      : backend_(backend), host_(host), arena_(backend) {
    memory_ = arena_.allocate(Region::Communication, "message", DType::I32, {std::ssize(host)});
    backend_.upload(memory_, host_.data());
  }
  void download() { backend_.download(host_.data(), memory_); }
  const Tensor& tensor() const { return memory_; }

 private:
  Backend& backend_;
  std::vector<std::int32_t>& host_;
  Arena arena_;
  Tensor memory_;
};

void broadcast(Backend& backend, Communicator& group, std::vector<std::int32_t>& values) {
  DeviceIntegers on_device(backend, values);
  group.wait(group.broadcast(on_device.tensor(), 0));
  on_device.download();
}

void send(Backend& backend, Communicator& group, std::vector<std::int32_t> message) {
  std::vector<std::int32_t> size = {static_cast<std::int32_t>(message.size())};
  broadcast(backend, group, size);
  broadcast(backend, group, message);
}

// Lists of integers, each with its length in front.
class Writer {
 public:
  void add(std::int64_t n) { all_.push_back(static_cast<std::int32_t>(n)); }
  void add(const std::vector<std::int32_t>& list) {
    add(std::ssize(list));
    all_.insert(all_.end(), list.begin(), list.end());
  }
  std::vector<std::int32_t> take() { return std::move(all_); }

 private:
  std::vector<std::int32_t> all_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::int32_t> all) : rest_(all) {}
  std::int32_t number() {
    const std::int32_t n = rest_.front();
    rest_ = rest_.subspan(1);
    return n;
  }
  std::vector<std::int32_t> list() {
    const auto count = static_cast<std::size_t>(number());
    const auto list = rest_.first(count);
    rest_ = rest_.subspan(count);
    return {list.begin(), list.end()};
  }

 private:
  std::span<const std::int32_t> rest_;
};

}  // namespace

void send_step(Backend& backend, Communicator& group, const std::vector<StepSequence>& sequences) {
  Writer writer;
  writer.add(std::ssize(sequences));
  for (const StepSequence& s : sequences) {
    for (const std::int64_t n : {s.position, std::int64_t{s.slot}, s.largest, std::int64_t{s.whole},
                                 std::int64_t{s.is_prompt}})
      writer.add(n);
    writer.add(s.tokens);
    writer.add(s.pages);
    writer.add(s.targets);
  }
  send(backend, group, writer.take());
}

void send_end(Backend& backend, Communicator& group) { send(backend, group, {kEnd}); }

std::optional<std::vector<StepSequence>> receive_step(Backend& backend, Communicator& group) {
  std::vector<std::int32_t> size(1);
  broadcast(backend, group, size);
  std::vector<std::int32_t> message(static_cast<std::size_t>(size[0]));
  broadcast(backend, group, message);
  Reader reader(message);
  const std::int32_t count = reader.number();
  if (count == kEnd) return {};
  std::vector<StepSequence> sequences(static_cast<std::size_t>(count));
  for (StepSequence& s : sequences) {
    s.position = reader.number();
    s.slot = reader.number();
    s.largest = reader.number();
    s.whole = reader.number() != 0;
    s.is_prompt = reader.number() != 0;
    s.tokens = reader.list();
    s.pages = reader.list();
    s.targets = reader.list();
  }
  return sequences;
}

std::int32_t largest_of(Backend& backend, Communicator& group, std::int32_t value) {
  std::vector<std::int32_t> values = {value};
  DeviceIntegers on_device(backend, values);
  group.wait(group.all_reduce(on_device.tensor(), ReduceOp::Max));
  on_device.download();
  return values[0];
}

}  // namespace kintsugi

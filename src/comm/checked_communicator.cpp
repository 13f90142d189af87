#include "comm/checked_communicator.h"

#include <algorithm>

namespace kintsugi {
namespace {

template <class T>
Tensor as_tensor(T* values, std::int64_t count) {
  static_assert(sizeof(T) % sizeof(std::int64_t) == 0);
  return {
      values, DType::I64, {count * static_cast<std::int64_t>(sizeof(T) / sizeof(std::int64_t))}};
}

}  // namespace

bool CheckedCommunicator::Description::same_as(const Description& other) const {
  return kind == other.kind && elements == other.elements && dtype == other.dtype &&
         detail == other.detail && number == other.number;
}

std::string CheckedCommunicator::Description::text() const {
  const auto collective = static_cast<Collective>(kind);
  std::string text = to_string(collective);
  if (collective == Collective::Barrier) return text;
  if (collective == Collective::AllReduce)
    text += detail == static_cast<int>(ReduceOp::Max) ? " (max)" : " (sum)";
  text += fmt::format(" of {} {}", elements, to_string(static_cast<DType>(dtype)));
  if (collective == Collective::Broadcast) text += fmt::format(" from {}", detail);
  return text;
}

CheckedCommunicator::Description CheckedCommunicator::describe(const Call& call,
                                                               std::int64_t number) const {
  const Tensor& x = call.whole();
  return {.kind = static_cast<std::int64_t>(is_message(call.kind) ? Collective::Send : call.kind),
          .elements = x && call.kind != Collective::AllToAll ? x.elements() : 0,
          .dtype = static_cast<std::int64_t>(x.dtype()),
          .detail = call.kind == Collective::AllReduce   ? static_cast<int>(call.op)
                    : call.kind == Collective::Broadcast ? call.peer
                                                         : 0,
          .number = number,
          .world_rank = world_rank_};
}

// All ranks compare the same list of calls, so all of them throw or none does.
void CheckedCommunicator::check_same_call(const Call& call) {
  if (size() == 1) return;
  Description own = describe(call, calls_++);
  std::vector<Description> calls(size());
  host_group().wait(host_group().all_gather(as_tensor(calls.data(), size()), as_tensor(&own, 1)));
  const auto count_equal = [&](const Description& call) {
    return std::ranges::count_if(calls,
                                 [&](const Description& other) { return other.same_as(call); });
  };
  // The most frequent call; of equally frequent ones the first.
  const Description& usual = *std::ranges::max_element(
      calls,
      [&](const Description& a, const Description& b) { return count_equal(a) < count_equal(b); });
  const auto odd =
      std::ranges::find_if(calls, [&](const Description& call) { return !call.same_as(usual); });
  if (odd == calls.end()) return;
  failure("group {}, call {}: rank {} ({} in the group) calls {}, but rank {} and {} more call {}",
          name(), own.number, odd->world_rank, odd - calls.begin(), odd->text(), usual.world_rank,
          count_equal(usual) - 1, usual.text());
}

Communicator::Work CheckedCommunicator::start(const Call& call) {
  if (is_message(call.kind)) return start_message(call);
  check_same_call(call);
  if (call.kind == Collective::AllToAll) check_counts(*call.counts);
  return numbered(inner_->start(call));
}

// The ranks tell each other what they send, since the counts of two ranks may differ.
void CheckedCommunicator::check_counts(const ExchangeCounts& counts) {
  std::vector<std::int64_t> own = counts.sent, theirs(own.size());
  host_group().wait(
      host_group().all_to_all(as_tensor(theirs.data(), size()), as_tensor(own.data(), size())));
  for (std::size_t from = 0; from < theirs.size(); ++from)
    if (theirs[from] != counts.received[from])
      failure("group {}: rank {} expects {} elements from rank {} of the group, which sends {}",
              name(), world_rank_, counts.received[from], from, theirs[from]);
}

void CheckedCommunicator::barrier() {
  check_same_call({});
  inner_->barrier();
}

Communicator::Work CheckedCommunicator::numbered(Work inner) {
  if (inner.ticket == 0) return inner;
  collectives_.emplace(++tickets_, inner);
  return {tickets_};
}

Communicator::Work CheckedCommunicator::start_message(const Call& call) {
  auto message = std::make_unique<Message>();
  message->received = call.kind == Collective::Receive;
  const Tensor description = as_tensor(&message->call, 1);
  if (message->received) {
    message->expected = describe(call, received_[call.peer]++);
    message->call_work = host_group().receive(description, call.peer);
  } else {
    message->call = describe(call, sent_[call.peer]++);
    message->call_work = host_group().send(description, call.peer);
  }
  message->payload = inner_->start(call);
  messages_.emplace(++tickets_, std::move(message));
  return {tickets_};
}

void CheckedCommunicator::check_message(const Message& message) const {
  if (message.call.same_as(message.expected)) return;
  failure("group {}: rank {} expects a message of {} {} from rank {}, which sends {} {}", name(),
          world_rank_, message.expected.elements,
          to_string(static_cast<DType>(message.expected.dtype)), message.call.world_rank,
          message.call.elements, to_string(static_cast<DType>(message.call.dtype)));
}

void CheckedCommunicator::wait(Work work) {
  if (work.ticket == 0) return;
  if (const auto found = messages_.find(work.ticket); found != messages_.end()) {
    const std::unique_ptr<Message> message = std::move(found->second);
    messages_.erase(found);
    host_group().wait(message->call_work);
    if (message->received) check_message(*message);
    return inner_->wait(message->payload);
  }
  const auto found = collectives_.find(work.ticket);
  KINTSUGI_CHECK(found != collectives_.end(), "group {}: wait for call {}, which is not in flight",
                 name(), work.ticket);
  const Work inner = found->second;
  collectives_.erase(found);
  inner_->wait(inner);
}

}  // namespace kintsugi

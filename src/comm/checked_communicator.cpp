#include "comm/checked_communicator.h"

#include <algorithm>

#include "comm/collective_checks.h"

namespace kintsugi {
namespace {

template <class T>
Tensor as_tensor(T* values, std::int64_t count) {
  static_assert(sizeof(T) % sizeof(std::int64_t) == 0);
  return {
      values, DType::I64, {count * static_cast<std::int64_t>(sizeof(T) / sizeof(std::int64_t))}};
}

}  // namespace

bool CheckedCommunicator::Call::same_as(const Call& other) const {
  return kind == other.kind && elements == other.elements && dtype == other.dtype &&
         detail == other.detail && number == other.number;
}

std::string CheckedCommunicator::Call::text() const {
  const auto collective = static_cast<Collective>(kind);
  std::string text = to_string(collective);
  if (collective == Collective::Barrier) return text;
  if (collective == Collective::AllReduce)
    text += detail == static_cast<int>(ReduceOp::Max) ? " (max)" : " (sum)";
  text += fmt::format(" of {} {}", elements, to_string(static_cast<DType>(dtype)));
  if (collective == Collective::Broadcast) text += fmt::format(" from {}", detail);
  return text;
}

CheckedCommunicator::Call CheckedCommunicator::make_call(Collective kind, Tensor x, int detail,
                                                         std::int64_t number) const {
  return {.kind = static_cast<std::int64_t>(kind),
          .elements = x ? x.elements() : 0,
          .dtype = static_cast<std::int64_t>(x.dtype()),
          .detail = detail,
          .number = number,
          .world_rank = world_rank_};
}

// All ranks compare the same list of calls, so all of them throw or none does.
void CheckedCommunicator::check_same_call(Collective kind, Tensor x, int detail) {
  if (size() == 1) return;
  Call own = make_call(kind, x, detail, calls_++);
  std::vector<Call> calls(size());
  host_group().wait(host_group().all_gather(as_tensor(calls.data(), size()), as_tensor(&own, 1)));
  const auto count_equal = [&](const Call& call) {
    return std::count_if(calls.begin(), calls.end(),
                         [&](const Call& other) { return other.same_as(call); });
  };
  // The most frequent call; of equally frequent ones the first.
  const Call& usual = *std::max_element(
      calls.begin(), calls.end(),
      [&](const Call& a, const Call& b) { return count_equal(a) < count_equal(b); });
  const auto odd = std::find_if(calls.begin(), calls.end(),
                                [&](const Call& call) { return !call.same_as(usual); });
  if (odd == calls.end()) return;
  failure("group {}, call {}: rank {} ({} in the group) calls {}, but rank {} and {} more call {}",
          name(), own.number, odd->world_rank, odd - calls.begin(), odd->text(), usual.world_rank,
          count_equal(usual) - 1, usual.text());
}

Communicator::Work CheckedCommunicator::all_reduce(Tensor x, ReduceOp op) {
  check_same_call(Collective::AllReduce, x, static_cast<int>(op));
  return numbered(inner_->all_reduce(x, op));
}

Communicator::Work CheckedCommunicator::reduce_scatter(Tensor shard, Tensor full) {
  check_same_call(Collective::ReduceScatter, full, 0);
  return numbered(inner_->reduce_scatter(shard, full));
}

Communicator::Work CheckedCommunicator::all_gather(Tensor full, Tensor shard) {
  check_same_call(Collective::AllGather, full, 0);
  return numbered(inner_->all_gather(full, shard));
}

Communicator::Work CheckedCommunicator::broadcast(Tensor x, int root) {
  check_same_call(Collective::Broadcast, x, root);
  return numbered(inner_->broadcast(x, root));
}

// The ranks also tell each other what they send, since the counts of two ranks may differ.
Communicator::Work CheckedCommunicator::all_to_all(Tensor received, Tensor sent,
                                                   const ExchangeCounts& counts) {
  check_exchange(*this, received, sent, counts);
  check_same_call(Collective::AllToAll, sent.rows(0, 0), 0);
  const auto ranks = static_cast<std::size_t>(size());
  const ExchangeCounts one_each{std::vector<std::int64_t>(ranks, 1),
                                std::vector<std::int64_t>(ranks, 1)};
  std::vector<std::int64_t> own = counts.sent, theirs(ranks);
  host_group().wait(host_group().all_to_all(as_tensor(theirs.data(), size()),
                                            as_tensor(own.data(), size()), one_each));
  for (std::size_t from = 0; from < ranks; ++from)
    if (theirs[from] != counts.received[from])
      failure("group {}: rank {} expects {} elements from rank {} of the group, which sends {}",
              name(), world_rank_, counts.received[from], from, theirs[from]);
  return numbered(inner_->all_to_all(received, sent, counts));
}

void CheckedCommunicator::barrier() {
  check_same_call(Collective::Barrier, {}, 0);
  inner_->barrier();
}

Communicator::Work CheckedCommunicator::remember(std::unique_ptr<Message> message, Work payload) {
  message->payload = payload;
  messages_.emplace(++tickets_, std::move(message));
  return {tickets_};
}

Communicator::Work CheckedCommunicator::numbered(Work inner) {
  if (inner.ticket == 0) return inner;
  collectives_.emplace(++tickets_, inner);
  return {tickets_};
}

Communicator::Work CheckedCommunicator::send(Tensor x, int to) {
  auto message = std::make_unique<Message>();
  message->call = make_call(Collective::Send, x, 0, sent_[to]++);
  message->call_work = host_group().send(as_tensor(&message->call, 1), to);
  return remember(std::move(message), inner_->send(x, to));
}

Communicator::Work CheckedCommunicator::receive(Tensor x, int from) {
  auto message = std::make_unique<Message>();
  message->received = true;
  message->expected = make_call(Collective::Send, x, 0, received_[from]++);
  message->call_work = host_group().receive(as_tensor(&message->call, 1), from);
  return remember(std::move(message), inner_->receive(x, from));
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

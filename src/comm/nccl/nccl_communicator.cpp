#include "comm/nccl/nccl_communicator.h"

#include <exception>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace kintsugi::nccl {
namespace {

std::size_t count_of(const Tensor& x) { return static_cast<std::size_t>(x.elements()); }

// Issues the NCCL calls of `f` as one NCCL group, so that none waits for another.
template <class F>
void grouped(const Library& nccl, const char* what, F&& f) {
  nccl.check(nccl.group_start(), "ncclGroupStart");
  f();
  nccl.check(nccl.group_end(), what);
}

}  // namespace

NcclCommunicator::NcclCommunicator(const NcclContext& context, GroupInfo info, Comm comm)
    : Communicator(info.name, info.host->rank(), info.host->size()),
      context_(context),
      info_(std::move(info)),
      exceptions_(std::uncaught_exceptions()),
      lane_(std::make_shared<Lane>(info_.id, info_.members, times_)) {
  lane_->comm = comm;
  lane_->label = info_.name;
  context_.watch.add(lane_);
}

NcclCommunicator::~NcclCommunicator() {
  if (context_.watch.has_failed()) return;  // everything was aborted
  // Otherwise tensors of calls in flight may be freed next, or a failed peer may never call.
  const bool orderly = pending_.empty() && std::uncaught_exceptions() == exceptions_;
  try {
    orderly ? close() : context_.watch.abandon();
  } catch (const Failure& error) {
    log_warning("group {}: {}", info_.name, error.what());
  }
}

void NcclCommunicator::close() {
  for (const auto& [edge, lane] : edges_) context_.watch.remove(lane);
  context_.watch.remove(lane_);
}

// An empty tensor is empty on all ranks, and nothing is called. In an all_to_all every rank makes
// the call, even one that exchanges nothing, so that all ranks count the same calls.
Communicator::Work NcclCommunicator::start(const Call& call) {
  if (call.kind != Collective::AllToAll && call.whole().elements() == 0) return {};
  const std::shared_ptr<Lane> lane =
      is_message(call.kind) ? lane_of({call.peer, call.kind == Collective::Send}) : lane_;
  Watch& watch = context_.watch;
  const std::size_t whole = bytes_of(call);
  const auto started = std::make_shared<nccl::Call>(
      lane, call.kind, static_cast<std::int64_t>(whole), watch.events());
  const Event ready(watch.events());
  watch.exclusively(to_string(call.kind), lane.get(), [&] {
    KINTSUGI_CHECK(!gpu::is_capturing(context_.compute), "group {}: {} while a graph is captured",
                   info_.name, to_string(call.kind));
    gpu::record(ready.get(), context_.compute);
    gpu::wait(lane->stream, ready.get());
    gpu::record(started->begin.get(), lane->stream);
    issue(call, *lane);
    gpu::record(started->end.get(), lane->stream);
    watch.add(started, ring_bytes(call.kind, static_cast<double>(whole), size()));
  });
  pending_.emplace(++tickets_, started);
  return {tickets_};
}

void NcclCommunicator::issue(const Call& call, const Lane& lane) {
  const Library& nccl = *context_.nccl;
  void *to = call.destination.data(), *from = call.source.data();
  const Tensor& shard = call.kind == Collective::ReduceScatter ? call.destination : call.source;
  const std::size_t whole = count_of(call.whole());
  const ElementType type = type_of(call.whole().dtype());
  const Reduction op = call.op == ReduceOp::Max ? Reduction::Max : Reduction::Sum;
  switch (call.kind) {
    case Collective::AllReduce:
      return nccl.check(nccl.all_reduce(from, to, whole, type, op, lane.comm, lane.stream),
                        "ncclAllReduce");
    case Collective::ReduceScatter:
      return nccl.check(nccl.reduce_scatter(from, to, count_of(shard), type, Reduction::Sum,
                                            lane.comm, lane.stream),
                        "ncclReduceScatter");
    case Collective::AllGather:
      return nccl.check(nccl.all_gather(from, to, count_of(shard), type, lane.comm, lane.stream),
                        "ncclAllGather");
    case Collective::Broadcast:
      return nccl.check(nccl.broadcast(from, to, whole, type, call.peer, lane.comm, lane.stream),
                        "ncclBroadcast");
    case Collective::AllToAll:
      return grouped(nccl, "an all_to_all", [&] { issue_exchange(call, lane); });
    // On an edge's communicator the sender is rank 0, the receiver rank 1.
    case Collective::Send:
      return nccl.check(nccl.send(from, whole, type, 1, lane.comm, lane.stream), "ncclSend");
    case Collective::Receive:
      return nccl.check(nccl.recv(to, whole, type, 0, lane.comm, lane.stream), "ncclRecv");
    case Collective::Barrier:
      break;
  }
  failure("group {}: {} is not a call of {}", info_.name, to_string(call.kind), nccl.name());
}

void NcclCommunicator::issue_exchange(const Call& call, const Lane& lane) {
  const Library& nccl = *context_.nccl;
  const ElementType type = type_of(call.source.dtype());
  const std::size_t width = size_of(call.source.dtype());
  auto* from = static_cast<std::byte*>(call.destination.data());
  const auto* to = static_cast<const std::byte*>(call.source.data());
  for (int peer = 0; peer < size(); ++peer) {
    const auto i = static_cast<std::size_t>(peer);
    const auto out = static_cast<std::size_t>(call.counts->sent[i]),
               in = static_cast<std::size_t>(call.counts->received[i]);
    if (out > 0) nccl.check(nccl.send(to, out, type, peer, lane.comm, lane.stream), "ncclSend");
    if (in > 0) nccl.check(nccl.recv(from, in, type, peer, lane.comm, lane.stream), "ncclRecv");
    to += out * width;
    from += in * width;
  }
}

void NcclCommunicator::wait(Work work) {
  if (work.ticket == 0) return;
  const auto found = pending_.find(work.ticket);
  KINTSUGI_CHECK(found != pending_.end(), "group {}: wait for call {}, which is not in flight",
                 info_.name, work.ticket);
  const std::shared_ptr<nccl::Call> call = std::move(found->second);
  pending_.erase(found);
  context_.watch.exclusively("wait", call->lane.get(), [&] {
    if (call->done) return;
    KINTSUGI_CHECK(!gpu::is_capturing(context_.compute),
                   "group {}: wait for {} while a graph is captured", info_.name,
                   to_string(call->kind));
    gpu::record(call->reached.get(), context_.compute);
    call->waited = true;
    gpu::wait(context_.compute, call->end.get());
  });
}

void NcclCommunicator::barrier() {
  context_.backend.synchronize();
  context_.watch.exclusively("barrier", lane_.get(), [] {});  // throws after a failure
  info_.host->barrier();
}

std::shared_ptr<void> NcclCommunicator::register_memory(Tensor x) {
  if (!context_.register_buffers || x.bytes() == 0) return {};
  void* handle = nullptr;
  const auto& nccl = context_.nccl;
  Watch& watch = context_.watch;
  watch.exclusively("ncclCommRegister", lane_.get(), [&] {
    nccl->check(nccl->comm_register(lane_->comm, x.data(), x.bytes(), &handle), "ncclCommRegister");
  });
  return {handle, [&watch, nccl, lane = lane_](void* registered) {
            // After a failure all communicators were aborted.
            if (registered == nullptr || watch.has_failed()) return;
            gpu::drain(lane->stream);
            nccl->comm_deregister(lane->comm, registered);
          }};
}

CommunicationTimes NcclCommunicator::times() const { return context_.watch.read(*times_); }

const std::shared_ptr<Lane>& NcclCommunicator::lane_of(Edge edge) {
  if (!edges_.contains(edge)) connect({edge});
  return edges_.at(edge);
}

void NcclCommunicator::connect_ring() {
  const int next = (rank() + 1) % size(), previous = (rank() + size() - 1) % size();
  const std::set<Edge> edges = {{next, true}, {next, false}, {previous, true}, {previous, false}};
  connect({edges.begin(), edges.end()});
}

// Connects all edges at once by sending one byte over each: NCCL connects two ranks with their
// first message and blocks the host until both have called it.
void NcclCommunicator::connect(const std::vector<Edge>& edges) {
  const Library& nccl = *context_.nccl;
  constexpr std::int64_t kBytes = sizeof(UniqueId);
  std::vector<UniqueId> ids(edges.size());
  std::vector<Work> exchanges;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const Tensor id(&ids[i], DType::U8, {kBytes});
    if (edges[i].outgoing) nccl.check(nccl.get_unique_id(&ids[i]), "ncclGetUniqueId");
    exchanges.push_back(edges[i].outgoing ? info_.host->send(id, edges[i].peer)
                                          : info_.host->receive(id, edges[i].peer));
  }
  for (const Work exchange : exchanges) info_.host->wait(exchange);

  std::vector<std::shared_ptr<Lane>> lanes;
  for (const Edge& edge : edges) {
    const int from = edge.outgoing ? rank() : edge.peer, to = edge.outgoing ? edge.peer : rank();
    lanes.push_back(
        std::make_shared<Lane>(fmt::format("{} {}>{}", info_.id, from, to),
                               std::vector<int>{info_.members[static_cast<std::size_t>(from)],
                                                info_.members[static_cast<std::size_t>(to)]},
                               times_));
    lanes.back()->label = fmt::format("{} {} {}", info_.name, edge.outgoing ? '>' : '<', edge.peer);
  }
  context_.watch.exclusively("ncclCommInitRank", lanes.front().get(), [&] {
    grouped(nccl, "ncclCommInitRank", [&] {
      for (std::size_t i = 0; i < edges.size(); ++i)
        nccl.check(nccl.comm_init_rank(&lanes[i]->comm, 2, ids[i], edges[i].outgoing ? 0 : 1),
                   "ncclCommInitRank");
    });
    grouped(nccl, "a first message", [&] {
      for (std::size_t i = 0; i < edges.size(); ++i) {
        void* byte = static_cast<char*>(context_.scratch) + i;
        nccl.check(edges[i].outgoing
                       ? nccl.send(byte, 1, ElementType::U8, 1, lanes[i]->comm, lanes[i]->stream)
                       : nccl.recv(byte, 1, ElementType::U8, 0, lanes[i]->comm, lanes[i]->stream),
                   "a first message");
      }
    });
    for (const auto& lane : lanes) gpu::synchronize(lane->stream);
  });
  for (std::size_t i = 0; i < edges.size(); ++i) {
    context_.watch.add(lanes[i]);
    edges_.emplace(edges[i], lanes[i]);
  }
}

}  // namespace kintsugi::nccl

#include "comm/nccl/nccl_communicator.h"

#include <exception>
#include <set>
#include <utility>

#include "comm/collective_checks.h"
#include "core/error.h"
#include "core/log.h"

namespace kintsugi::nccl {
namespace {

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

std::size_t count_of(const Tensor& x) { return static_cast<std::size_t>(x.elements()); }

// Issues the NCCL calls of `f` as one NCCL group, so that none waits for another.
template <class F>
void grouped(const char* what, F&& f) {
  check_nccl(ncclGroupStart(), "ncclGroupStart");
  f();
  check_nccl(ncclGroupEnd(), what);
}

}  // namespace

NcclCommunicator::NcclCommunicator(const NcclContext& context, GroupInfo info, ncclComm_t comm)
    : context_(context),
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

template <class F>
Communicator::Work NcclCommunicator::start(Collective kind, const std::shared_ptr<Lane>& lane,
                                           const Tensor& whole, F&& issue) {
  if (whole.elements() == 0) return {};
  return start_bytes(kind, lane, whole.bytes(), std::forward<F>(issue));
}

template <class F>
Communicator::Work NcclCommunicator::start_bytes(Collective kind, const std::shared_ptr<Lane>& lane,
                                                 std::size_t whole, F&& issue) {
  Watch& watch = context_.watch;
  const double bytes = ring_bytes(kind, static_cast<double>(whole), size());
  const auto call =
      std::make_shared<Call>(lane, kind, static_cast<std::int64_t>(whole), watch.events());
  const Event ready(watch.events());
  watch.exclusively(to_string(kind), lane.get(), [&] {
    KINTSUGI_CHECK(!is_capturing(context_.compute), "group {}: {} while a graph is captured",
                   info_.name, to_string(kind));
    check_cuda(cudaEventRecord(ready.get(), context_.compute), "cudaEventRecord");
    check_cuda(cudaStreamWaitEvent(lane->stream, ready.get(), 0), "cudaStreamWaitEvent");
    check_cuda(cudaEventRecord(call->begin.get(), lane->stream), "cudaEventRecord");
    issue();
    check_cuda(cudaEventRecord(call->end.get(), lane->stream), "cudaEventRecord");
    watch.add(call, bytes);
  });
  pending_.emplace(++tickets_, call);
  return {tickets_};
}

Communicator::Work NcclCommunicator::all_reduce(Tensor x, ReduceOp op) {
  check_contiguous(*this, "all_reduce", x);
  return start(Collective::AllReduce, lane_, x, [&] {
    check_nccl(ncclAllReduce(x.data(), x.data(), count_of(x), type_of(x.dtype()),
                             op == ReduceOp::Max ? ncclMax : ncclSum, lane_->comm, lane_->stream),
               "ncclAllReduce");
  });
}

Communicator::Work NcclCommunicator::reduce_scatter(Tensor shard, Tensor full) {
  check_parts(*this, "reduce_scatter", full, shard);
  return start(Collective::ReduceScatter, lane_, full, [&] {
    check_nccl(ncclReduceScatter(full.data(), shard.data(), count_of(shard), type_of(full.dtype()),
                                 ncclSum, lane_->comm, lane_->stream),
               "ncclReduceScatter");
  });
}

Communicator::Work NcclCommunicator::all_gather(Tensor full, Tensor shard) {
  check_parts(*this, "all_gather", full, shard);
  return start(Collective::AllGather, lane_, full, [&] {
    check_nccl(ncclAllGather(shard.data(), full.data(), count_of(shard), type_of(full.dtype()),
                             lane_->comm, lane_->stream),
               "ncclAllGather");
  });
}

Communicator::Work NcclCommunicator::broadcast(Tensor x, int root) {
  check_contiguous(*this, "broadcast", x);
  check_rank(*this, "broadcast", root);
  return start(Collective::Broadcast, lane_, x, [&] {
    check_nccl(ncclBroadcast(x.data(), x.data(), count_of(x), type_of(x.dtype()), root, lane_->comm,
                             lane_->stream),
               "ncclBroadcast");
  });
}

// Every rank makes the call, even one that exchanges nothing, so that all ranks count the same
// calls.
Communicator::Work NcclCommunicator::all_to_all(Tensor received, Tensor sent,
                                                const ExchangeCounts& counts) {
  check_exchange(*this, received, sent, counts);
  const ncclDataType_t type = type_of(sent.dtype());
  const std::size_t width = size_of(sent.dtype());
  return start_bytes(Collective::AllToAll, lane_, bytes_to_others(*this, sent, counts), [&] {
    grouped("an all_to_all", [&] {
      auto* from = static_cast<std::byte*>(received.data());
      const auto* to = static_cast<const std::byte*>(sent.data());
      for (int peer = 0; peer < size(); ++peer) {
        const auto i = static_cast<std::size_t>(peer);
        const auto out = static_cast<std::size_t>(counts.sent[i]),
                   in = static_cast<std::size_t>(counts.received[i]);
        if (out > 0)
          check_nccl(ncclSend(to, out, type, peer, lane_->comm, lane_->stream), "ncclSend");
        if (in > 0)
          check_nccl(ncclRecv(from, in, type, peer, lane_->comm, lane_->stream), "ncclRecv");
        to += out * width;
        from += in * width;
      }
    });
  });
}

// On an edge's communicator the sender is rank 0, the receiver rank 1.
Communicator::Work NcclCommunicator::send(Tensor x, int to) {
  check_contiguous(*this, "send", x);
  check_peer(*this, "send", to);
  const auto lane = lane_of({to, true});
  return start(Collective::Send, lane, x, [&] {
    check_nccl(ncclSend(x.data(), count_of(x), type_of(x.dtype()), 1, lane->comm, lane->stream),
               "ncclSend");
  });
}

Communicator::Work NcclCommunicator::receive(Tensor x, int from) {
  check_contiguous(*this, "receive", x);
  check_peer(*this, "receive", from);
  const auto lane = lane_of({from, false});
  return start(Collective::Receive, lane, x, [&] {
    check_nccl(ncclRecv(x.data(), count_of(x), type_of(x.dtype()), 0, lane->comm, lane->stream),
               "ncclRecv");
  });
}

void NcclCommunicator::wait(Work work) {
  if (work.ticket == 0) return;
  const auto found = pending_.find(work.ticket);
  KINTSUGI_CHECK(found != pending_.end(), "group {}: wait for call {}, which is not in flight",
                 info_.name, work.ticket);
  const std::shared_ptr<Call> call = std::move(found->second);
  pending_.erase(found);
  context_.watch.exclusively("wait", call->lane.get(), [&] {
    if (call->done) return;
    KINTSUGI_CHECK(!is_capturing(context_.compute),
                   "group {}: wait for {} while a graph is captured", info_.name,
                   to_string(call->kind));
    check_cuda(cudaEventRecord(call->reached.get(), context_.compute), "cudaEventRecord");
    call->waited = true;
    check_cuda(cudaStreamWaitEvent(context_.compute, call->end.get(), 0), "cudaStreamWaitEvent");
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
  Watch& watch = context_.watch;
  watch.exclusively("ncclCommRegister", lane_.get(), [&] {
    check_nccl(ncclCommRegister(lane_->comm, x.data(), x.bytes(), &handle), "ncclCommRegister");
  });
  return {handle, [&watch, lane = lane_](void* registered) {
            // After a failure all communicators were aborted.
            if (registered == nullptr || watch.has_failed()) return;
            cudaStreamSynchronize(lane->stream);
            ncclCommDeregister(lane->comm, registered);
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
  constexpr std::int64_t kBytes = sizeof(ncclUniqueId);
  std::vector<ncclUniqueId> ids(edges.size());
  std::vector<Work> exchanges;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const Tensor id(&ids[i], DType::U8, {kBytes});
    if (edges[i].outgoing) check_nccl(ncclGetUniqueId(&ids[i]), "ncclGetUniqueId");
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
    grouped("ncclCommInitRank", [&] {
      for (std::size_t i = 0; i < edges.size(); ++i)
        check_nccl(ncclCommInitRank(&lanes[i]->comm, 2, ids[i], edges[i].outgoing ? 0 : 1),
                   "ncclCommInitRank");
    });
    grouped("a first message", [&] {
      for (std::size_t i = 0; i < edges.size(); ++i) {
        void* byte = static_cast<char*>(context_.scratch) + i;
        check_nccl(edges[i].outgoing
                       ? ncclSend(byte, 1, ncclUint8, 1, lanes[i]->comm, lanes[i]->stream)
                       : ncclRecv(byte, 1, ncclUint8, 0, lanes[i]->comm, lanes[i]->stream),
                   "a first message");
      }
    });
    for (const auto& lane : lanes)
      check_cuda(cudaStreamSynchronize(lane->stream), "cudaStreamSynchronize");
  });
  for (std::size_t i = 0; i < edges.size(); ++i) {
    context_.watch.add(lanes[i]);
    edges_.emplace(edges[i], lanes[i]);
  }
}

}  // namespace kintsugi::nccl

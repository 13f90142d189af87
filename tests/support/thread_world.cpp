#include "support/thread_world.h"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <tuple>
#include <vector>

#include "comm/reduce.h"
#include "core/collective.h"

namespace kintsugi {
namespace {

using Bytes = std::vector<std::byte>;

Bytes copy_of(Tensor x) {
  const auto* begin = static_cast<const std::byte*>(x.data());
  return !x || x.elements() == 0 ? Bytes{} : Bytes(begin, begin + x.bytes());
}

bool holds(Tensor x, const Bytes& image) {
  return image.empty() ? !x || x.elements() == 0
                       : x && x.bytes() == image.size() &&
                             std::memcmp(x.data(), image.data(), image.size()) == 0;
}

void store(Tensor x, const std::byte* bytes) {
  if (x.elements() > 0) std::memcpy(x.data(), bytes, x.bytes());
}

void poison(Tensor x) {
  if (x.elements() > 0) std::memset(x.data(), 0xFF, x.bytes());
}

// Whether this is the thread of a rank. Threads that a rank starts may communicate too, but do not
// count as ranks that wait.
thread_local bool is_rank = false;

// Where ranks wait for each other: one for each group, so that a call wakes only the ranks that it
// may concern. The fields are changed under the lock of the hub.
struct WaitingRoom {
  std::condition_variable changed = {};
  std::int64_t generation = 0;
  int waiting = 0;  // ranks that have seen this generation
};

// Synchronizes the ranks of one job: one lock for everything, and a count of the ranks that wait.
class Hub {
 public:
  explicit Hub(int ranks) : ranks_(ranks) {}

  WaitingRoom& new_room() { return rooms_.emplace_back(); }  // called under the lock

  // Runs `change` under the lock. It returns whether ranks in the room may go on: they are woken.
  template <class F>
  void post(WaitingRoom& room, F&& change) {
    const std::lock_guard lock(mutex_);
    if (change()) wake(room);
  }

  // Waits until ready(), which is called under the lock. Failure if the job ends first or
  // deadlocks.
  template <class F>
  void await(WaitingRoom& room, const std::string& what, F&& ready) {
    std::unique_lock lock(mutex_);
    std::int64_t counted = -1;
    while (!ready()) {
      if (ended_) failure("{}: another rank failed", what);
      if (is_rank && counted != room.generation) {
        counted = room.generation;
        ++room.waiting;
        if (++waiting_ + finished_ == ranks_) {
          end();
          const Failure deadlock(fmt::format("{}: all ranks wait, no rank is left to call", what));
          if (!first_) first_ = std::make_exception_ptr(deadlock);
          throw deadlock;
        }
      }
      room.changed.wait(lock);
    }
  }

  void finish() {
    const std::lock_guard lock(mutex_);
    ++finished_;
    wake_all();
  }

  void fail(std::exception_ptr exception) {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = exception;
    end();
  }

  std::exception_ptr first() const { return first_; }

 private:
  // The ranks in the room check again; until then, they do not count as waiting.
  void wake(WaitingRoom& room) {
    ++room.generation;
    waiting_ -= room.waiting;
    room.waiting = 0;
    room.changed.notify_all();
  }
  void wake_all() {
    for (WaitingRoom& room : rooms_) wake(room);
  }
  void end() {
    ended_ = true;
    wake_all();
  }

  const int ranks_;
  std::mutex mutex_;
  std::list<WaitingRoom> rooms_;
  int waiting_ = 0;
  int finished_ = 0;
  bool ended_ = false;
  std::exception_ptr first_;
};

// The n-th collective of a group.
struct CollectiveCall {
  Collective kind;
  std::int64_t elements;
  DType dtype;
  std::vector<Bytes> sources;
  std::vector<std::vector<std::int64_t>> sent;  // all_to_all: counts by rank
  int arrived = 0;
  int left = 0;
  std::once_flag once;
  Bytes result;
};

struct ThreadGroup {
  Hub& hub;
  WaitingRoom& room;
  int size;
  std::map<std::int64_t, CollectiveCall> collectives = {};
  std::map<std::tuple<int, int, std::int64_t>, Bytes> mail = {};  // from, to, n-th message
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::string name, std::shared_ptr<ThreadGroup> group, int rank)
      : Communicator(std::move(name), rank, group->size),
        group_(std::move(group)),
        sent_(group_->size),
        received_(group_->size),
        exceptions_(std::uncaught_exceptions()) {}

  ~ThreadCommunicator() override {
    if (!pending_.empty() && std::uncaught_exceptions() == exceptions_)
      group_->hub.fail(std::make_exception_ptr(
          Failure(fmt::format("{}: {} of {} calls were never waited for", description(),
                              pending_.size(), to_string(pending_.begin()->second.kind)))));
  }

  // Stores a copy of this rank's source; wait() does the rest.
  Work start(const Call& call) override {
    Started started{.kind = call.kind,
                    .destination = call.destination,
                    .source = call.whole(),
                    .op = call.op,
                    .peer = call.peer};
    if (call.kind == Collective::AllGather) started.source = call.source;
    if (call.kind == Collective::Broadcast && rank() == call.peer) started.destination = {};
    if (call.counts != nullptr) started.counts = *call.counts;
    if (call.kind == Collective::Send) {
      const std::tuple key{rank(), call.peer, sent_[call.peer]++};
      group_->hub.post(group_->room, [&] {
        group_->mail[key] = copy_of(call.source);
        return true;
      });
    } else if (call.kind == Collective::Receive) {
      started.sequence = received_[call.peer]++;
    } else {
      join(started);
    }
    return remember(std::move(started));
  }

  void wait(Work work) override {
    if (work.ticket == 0) return;
    const auto found = pending_.find(work.ticket);
    if (found == pending_.end())
      failure("{}: wait for call {}, which is not under way", description(), work.ticket);
    Started call = std::move(found->second);
    pending_.erase(found);
    if (!holds(call.source, call.source_image) ||
        (call.destination && !holds(call.destination, call.destination_image)))
      failure("{}: a tensor of {} was written to before wait()", description(), call.what());
    if (call.kind == Collective::Send) return;
    call.kind == Collective::Receive ? finish_receive(call) : finish(call);
  }

  void barrier() override { wait(start({})); }

 private:
  struct Started {
    Collective kind;
    Tensor destination = {};
    Tensor source = {};
    ReduceOp op = ReduceOp::Sum;
    int peer = 0;
    std::int64_t sequence = 0;
    ExchangeCounts counts = {};
    Bytes source_image = {};  // what the tensors must still hold in wait()
    Bytes destination_image = {};
    const char* what() const { return to_string(kind); }
  };

  std::string description() const { return fmt::format("group {}, rank {}", name(), rank()); }

  Work remember(Started call) {
    if (call.destination) poison(call.destination);
    call.source_image = copy_of(call.source);
    if (call.destination) call.destination_image = copy_of(call.destination);
    pending_.emplace(++tickets_, std::move(call));
    return {tickets_};
  }

  void join(Started& call) {
    call.sequence = collectives_++;
    Bytes source = copy_of(call.source);
    group_->hub.post(group_->room, [&] {
      CollectiveCall& collective = group_->collectives[call.sequence];
      if (collective.arrived == 0) {
        collective.kind = call.kind;
        collective.elements = call.source.elements();
        collective.dtype = call.source.dtype();
        collective.sources.resize(size());
        collective.sent.resize(size());
      }
      const bool same_size =
          collective.elements == call.source.elements() || call.kind == Collective::AllToAll;
      if (collective.kind != call.kind || !same_size || collective.dtype != call.source.dtype())
        failure("{} calls {} of {} {}, others {} of {} {}", description(), call.what(),
                call.source.elements(), to_string(call.source.dtype()), to_string(collective.kind),
                collective.elements, to_string(collective.dtype));
      collective.sources[rank()] = std::move(source);
      collective.sent[rank()] = call.counts.sent;
      return ++collective.arrived == size();
    });
  }

  void finish(Started& call) {
    CollectiveCall* collective = nullptr;
    group_->hub.await(group_->room, description() + ", " + call.what(), [&] {
      collective = &group_->collectives.at(call.sequence);
      return collective->arrived == size();
    });
    deliver(call, *collective);
    group_->hub.post(group_->room, [&] {
      if (++collective->left == size()) group_->collectives.erase(call.sequence);
      return false;
    });
  }

  void deliver(const Started& call, CollectiveCall& collective) {
    const std::int64_t elements = call.destination.elements();
    if (call.kind == Collective::AllReduce) {
      std::call_once(collective.once, [&] {
        collective.result.resize(call.destination.bytes());
        reduce_parts(collective.result.data(), parts(collective, 0), elements, collective.dtype,
                     call.op);
      });
      store(call.destination, collective.result.data());
    } else if (call.kind == Collective::ReduceScatter) {
      reduce_parts(call.destination.data(), parts(collective, rank() * call.destination.bytes()),
                   elements, collective.dtype, call.op);
    } else if (call.kind == Collective::AllGather) {
      const Tensor rows = call.destination.view({size(), call.source.elements()});
      for (int r = 0; r < size(); ++r) store(rows.rows(r, 1), collective.sources[r].data());
    } else if (call.kind == Collective::AllToAll) {
      deliver_exchange(call, collective);
    } else if (call.kind == Collective::Broadcast && call.destination) {
      store(call.destination, collective.sources[call.peer].data());
    }
  }

  void deliver_exchange(const Started& call, const CollectiveCall& collective) const {
    const std::size_t width = size_of(call.source.dtype());
    std::int64_t at = 0;
    for (int from = 0; from < size(); ++from) {
      const std::vector<std::int64_t>& sent = collective.sent[from];
      const std::int64_t count = sent[rank()];
      if (count != call.counts.received[from])
        failure("{} expects {} elements from rank {}, which sends {}", description(),
                call.counts.received[from], from, count);
      const std::int64_t first =
          std::accumulate(sent.begin(), sent.begin() + rank(), std::int64_t{0});
      store(call.destination.view({call.destination.elements()}).rows(at, count),
            collective.sources[from].data() + static_cast<std::size_t>(first) * width);
      at += count;
    }
  }

  std::vector<const void*> parts(const CollectiveCall& collective, std::size_t offset) const {
    std::vector<const void*> pointers;
    for (const Bytes& source : collective.sources) pointers.push_back(source.data() + offset);
    return pointers;
  }

  void finish_receive(const Started& call) {
    const std::tuple key{call.peer, rank(), call.sequence};
    group_->hub.await(group_->room, fmt::format("{}, receive from {}", description(), call.peer),
                      [&] { return group_->mail.contains(key); });
    group_->hub.post(group_->room, [&] {
      const Bytes& message = group_->mail.at(key);
      if (message.size() != call.destination.bytes())
        failure("{} receives {} bytes from rank {}, which sent {}", description(),
                call.destination.bytes(), call.peer, message.size());
      store(call.destination, message.data());
      group_->mail.erase(key);
      return false;
    });
  }

  std::shared_ptr<ThreadGroup> group_;
  std::int64_t tickets_ = 0;
  std::int64_t collectives_ = 0;
  std::vector<std::int64_t> sent_, received_;  // messages per peer
  std::map<std::int64_t, Started> pending_;
  int exceptions_;
};

// The n-th split of the world.
struct Split {
  struct Request {
    int color, key, rank;
    auto operator<=>(const Request&) const = default;
  };
  std::vector<Request> requests;
  std::map<int, std::shared_ptr<ThreadGroup>> groups;
};

struct Job {
  explicit Job(int ranks) : hub(ranks) {}
  Hub hub;
  WaitingRoom& room = hub.new_room();
  std::map<int, Split> splits;
};

class ThreadWorld : public World {
 public:
  ThreadWorld(Job& job, int rank, int size) : World({rank, size, rank, size}), job_(job) {}

  std::unique_ptr<Communicator> split(const std::string& name, int color, int key) override {
    Split* split = nullptr;
    job_.hub.post(job_.room, [&] {
      split = &job_.splits[splits_++];
      split->requests.push_back({color, key, this->rank()});
      return static_cast<int>(split->requests.size()) == size();
    });
    job_.hub.await(job_.room, fmt::format("rank {}, split {}", this->rank(), name),
                   [&] { return static_cast<int>(split->requests.size()) == size(); });
    std::unique_ptr<Communicator> result;
    job_.hub.post(job_.room, [&] {
      std::sort(split->requests.begin(), split->requests.end());
      int members = 0, rank = 0;
      for (const Split::Request& request : split->requests) {
        if (request.color != color) continue;
        if (request.rank == this->rank()) rank = members;
        ++members;
      }
      auto& group = split->groups[color];
      if (!group) group = std::make_shared<ThreadGroup>(job_.hub, job_.hub.new_room(), members);
      result = std::make_unique<ThreadCommunicator>(name, group, rank);
      return false;
    });
    return result;
  }

 private:
  Job& job_;
  int splits_ = 0;
};

}  // namespace

void run_ranks(int ranks, const std::function<void(World&)>& function) {
  Job job(ranks);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        is_rank = true;
        try {
          ThreadWorld world(job, rank, ranks);
          function(world);
          job.hub.finish();
        } catch (...) {
          job.hub.fail(std::current_exception());
        }
      });
  }
  if (job.hub.first()) std::rethrow_exception(job.hub.first());
}

}  // namespace kintsugi

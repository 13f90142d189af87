#pragma once

#include <map>
#include <vector>

#include "comm/collective.h"
#include "comm/communicator.h"

namespace kintsugi {

// Before each collective the ranks tell each other what they are about to call. If they disagree,
// every one of them ends in the same Failure, which names the first rank that differs from the most
// and what it called. A receiver learns the same of its message, in wait(). For bugs: calls wait
// for all ranks of the group. They tell each other through a group for host memory: this one, or
// its double where it is for devices.
class CheckedCommunicator : public Communicator {
 public:
  CheckedCommunicator(std::unique_ptr<Communicator> inner, int world_rank,
                      std::unique_ptr<Communicator> host = nullptr)
      : inner_(std::move(inner)), host_(std::move(host)), world_rank_(world_rank) {}
  const std::string& name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  Work all_reduce(Tensor x, ReduceOp op) override;
  Work reduce_scatter(Tensor shard, Tensor full) override;
  Work all_gather(Tensor full, Tensor shard) override;
  Work broadcast(Tensor x, int root) override;
  Work send(Tensor x, int to) override;
  Work receive(Tensor x, int from) override;
  void wait(Work work) override;
  void barrier() override;
  std::shared_ptr<void> register_memory(Tensor x) override { return inner_->register_memory(x); }
  CommunicationTimes times() const override { return inner_->times(); }

 private:
  struct Call {
    std::int64_t kind = 0, elements = 0, dtype = 0, detail = 0;  // detail: the operation or root
    std::int64_t number = 0;      // calls of this kind of exchange before this one
    std::int64_t world_rank = 0;  // who calls, not compared
    bool same_as(const Call& other) const;
    std::string text() const;
  };
  // A message travels behind the call that sent it.
  struct Message {
    Call call;      // as sent, or as received
    Call expected;  // by the receiver
    Work call_work;
    Work payload;
    bool received = false;
  };

  Call make_call(Collective kind, Tensor x, int detail, std::int64_t number) const;
  void agree(Collective kind, Tensor x, int detail);
  void check_message(const Message& message) const;
  // Its own number for a message: a group may give several payloads none (NCCL: empty ones).
  Work remember(std::unique_ptr<Message> message, Work payload);
  Work numbered(Work inner);

  Communicator& told() { return host_ ? *host_ : *inner_; }

  std::unique_ptr<Communicator> inner_, host_;
  int world_rank_;
  std::int64_t calls_ = 0;
  std::int64_t tickets_ = 0;
  std::map<std::int64_t, std::unique_ptr<Message>> messages_;  // by ticket
  std::map<std::int64_t, Work> collectives_;                   // the group's own, by ticket
  std::map<int, std::int64_t> sent_, received_;                // by peer
};

// A world whose groups check.
class CheckedWorld : public World {
 public:
  explicit CheckedWorld(World& inner, World* hosts = nullptr) : inner_(inner), hosts_(hosts) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  int local_rank() const override { return inner_.local_rank(); }
  int local_size() const override { return inner_.local_size(); }
  std::unique_ptr<Communicator> split(const std::string& name, int color, int key) override {
    auto inner = inner_.split(name, color, key);
    return std::make_unique<CheckedCommunicator>(
        std::move(inner), rank(), hosts_ == nullptr ? nullptr : hosts_->split(name, color, key));
  }

 private:
  World& inner_;
  World* hosts_;
};

}  // namespace kintsugi

#pragma once

#include <map>
#include <vector>

#include "comm/communicator.h"
#include "core/collective.h"

namespace kintsugi {

// For debugging: before each collective the ranks exchange what they are about to call. If they
// disagree, all ranks throw the same Failure, which names the first rank that differs from the
// majority and its call. A receiver checks its message in wait(). Every call blocks until all ranks
// of the group make one. The exchange uses `host`, a group of the same ranks for host memory;
// without it, the group itself.
class CheckedCommunicator : public ForwardingCommunicator {
 public:
  CheckedCommunicator(std::unique_ptr<Communicator> inner, int world_rank,
                      std::unique_ptr<Communicator> host = nullptr)
      : ForwardingCommunicator(std::move(inner)), host_(std::move(host)), world_rank_(world_rank) {}
  Work start(const Call& call) override;
  void wait(Work work) override;
  void barrier() override;

 private:
  struct Description {
    std::int64_t kind = 0, elements = 0, dtype = 0, detail = 0;  // detail: the operation or root
    std::int64_t number = 0;      // index of the collective, or of the message between two ranks
    std::int64_t world_rank = 0;  // of the caller; not compared
    bool same_as(const Description& other) const;
    std::string text() const;
  };
  // The description of the call is sent before the payload.
  struct Message {
    Description call;      // sent or received
    Description expected;  // on the receiver
    Work call_work;
    Work payload;
    bool received = false;
  };

  Description describe(const Call& call, std::int64_t number) const;
  void check_same_call(const Call& call);
  void check_counts(const ExchangeCounts& counts);
  Work start_message(const Call& call);
  void check_message(const Message& message) const;
  // Returns a ticket of our own, since the inner group may return ticket 0 (NCCL: empty tensors).
  Work numbered(Work inner);

  Communicator& host_group() { return host_ ? *host_ : *inner_; }

  std::unique_ptr<Communicator> host_;
  int world_rank_;
  std::int64_t calls_ = 0;
  std::int64_t tickets_ = 0;
  std::map<std::int64_t, std::unique_ptr<Message>> messages_;  // by ticket
  std::map<std::int64_t, Work> collectives_;                   // the inner group's work, by ticket
  std::map<int, std::int64_t> sent_, received_;                // by peer
};

// Makes groups of the type CheckedCommunicator.
class CheckedWorld : public World {
 public:
  explicit CheckedWorld(World& inner, World* hosts = nullptr)
      : World(inner.place()), inner_(inner), hosts_(hosts) {}
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

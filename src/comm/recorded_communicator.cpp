#include "comm/recorded_communicator.h"

namespace kintsugi {

Communicator::Work RecordedCommunicator::start(const Call& call) {
  // In an all_to_all the ranks send different amounts, which would look like a disagreement.
  const bool sized = call.kind != Collective::AllToAll && call.whole();
  const std::int64_t number =
      recorder_.call(group_, call.kind, sized ? static_cast<std::int64_t>(call.whole().bytes()) : 0,
                     is_message(call.kind) ? call.peer : -1);
  const Work work = inner_->start(call);
  pending_[static_cast<std::size_t>(number) % pending_.size()] = {work.ticket, number};
  return work;
}

void RecordedCommunicator::wait(Work work) {
  std::int64_t number = 0;
  for (const Pending& pending : pending_)
    if (pending.ticket == work.ticket && pending.number > number) number = pending.number;
  recorder_.begin_wait(group_, number);
  inner_->wait(work);
  recorder_.end_wait(group_);
}

void RecordedCommunicator::barrier() {
  recorder_.begin_wait(group_, recorder_.call(group_, Collective::Barrier, 0));
  inner_->barrier();
  recorder_.end_wait(group_);
}

}  // namespace kintsugi

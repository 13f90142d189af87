#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/error.h"

namespace kintsugi {

// What all ranks throw together: each has heard of it.
class SharedUserError : public UserError {
 public:
  using UserError::UserError;
};
class SharedFailure : public Failure {
 public:
  using Failure::Failure;
};

// All on host memory, called by every rank of the group.

// Every rank's text, by rank. Memory for all of them on each: for short ones, at the start.
std::vector<std::string> gather_texts(Communicator& group, const std::string& mine);
// One rank's text, on all of them.
std::string text_of(Communicator& group, int root, const std::string& text);

// Runs `work` here and waits for the others. If it threw on any rank, every rank throws what the
// first of them threw, with its rank in front unless all threw the same; so that no rank goes on
// alone. No collective of the same ranks may run inside: a rank that threw would not take part.
// One all-reduce of one number where nothing is wrong.
void together(Communicator& group, const std::function<void()>& work);

}  // namespace kintsugi

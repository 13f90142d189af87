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

// Every rank's text, by rank. On host memory.
std::vector<std::string> gather_texts(Communicator& group, const std::string& mine);
// Rank 0's text, on every rank.
std::string text_of_first(Communicator& group, std::string mine);

// Runs `work` here and waits for the others. If it threw on any rank, every rank throws what the
// first of them threw, with its rank in front unless all threw the same; so that no rank goes on
// alone. No collective of the same ranks may run inside: a rank that threw would not take part.
void together(Communicator& group, const std::function<void()>& work);

}  // namespace kintsugi

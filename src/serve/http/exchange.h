#pragma once

#include <atomic>
#include <functional>

#include "serve/http/replies.h"
#include "serve/http/service.h"

namespace kintsugi {

// Common to service.cpp and service_texts.cpp.

struct HttpService::Exchange {
  std::function<bool()> gone;
  Clock::time_point start = Clock::now(), deadline;
  const std::atomic<bool>& aborting;

  // The next event of the texts. Looks at the client and the clock while it waits.
  TextEvent next(PendingTexts& texts) const;
  double elapsed_s() const { return std::chrono::duration<double>(Clock::now() - start).count(); }
};

std::int64_t unix_time();
HttpReply json_reply(const OrderedJson& json);

}  // namespace kintsugi

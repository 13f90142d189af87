#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

enum class SpanKind : std::uint8_t { Compute, Communication, Pipeline, Host };
std::string_view to_string(SpanKind kind);

// A time interval. Times are seconds of the monotonic clock, which all processes of a node share.
struct TraceSpan {
  SpanKind kind = SpanKind::Host;
  std::string lane = {};  // for communication: the group ("shard"), or group and peer ("pp > 1")
  std::string name = {};
  double begin_s = 0;
  double end_s = 0;
  std::int64_t bytes = 0;
  // For communication: identifies the call; the same text on all ranks that take part.
  std::string call = {};

  std::string group() const { return lane.substr(0, lane.find(' ')); }
};

// Collects spans from any thread while it is on. Traced code gets a pointer to it, or nullptr.
class Trace {
 public:
  // For a source of spans that must prepare, or that knows the times of its spans only later.
  class Source {
   public:
    virtual ~Source() = default;
    virtual void trace_begins() = 0;
    virtual void trace_ends() = 0;  // adds the missing spans
  };

  static double now();  // seconds

  bool on() const { return on_.load(std::memory_order_relaxed); }
  // Call begin, end, attach and detach from one thread. end() waits for communication in flight, so
  // all ranks must call it.
  void begin();
  void end();
  void attach(Source& source) { sources_.push_back(&source); }
  void detach(Source& source) { std::erase(sources_, &source); }

  void add(TraceSpan span);
  std::vector<TraceSpan> take();  // returns and removes all spans

 private:
  std::atomic<bool> on_ = false;
  std::vector<Source*> sources_;
  std::mutex mutex_;
  std::vector<TraceSpan> spans_;
};

// Adds a host span for the lifetime of this object. Does nothing unless `trace` is on.
class HostSpan {
 public:
  HostSpan(Trace* trace, std::string_view name);
  ~HostSpan();
  HostSpan(const HostSpan&) = delete;
  HostSpan& operator=(const HostSpan&) = delete;

 private:
  Trace* trace_;
  TraceSpan span_;
};

}  // namespace kintsugi

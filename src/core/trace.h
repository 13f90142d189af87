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

// Something that took time. Seconds are those of this machine's monotonic clock, which all
// processes of a node share.
struct TraceSpan {
  SpanKind kind = SpanKind::Host;
  std::string lane = {};  // of communication: "shard", or the group and the other rank: "pp > 1"
  std::string name = {};
  double begin_s = 0;
  double end_s = 0;
  std::int64_t bytes = 0;
  // Of communication: which call it is, the same text on all ranks that take part.
  std::string call = {};

  std::string group() const { return lane.substr(0, lane.find(' ')); }
};

// Takes spans from any thread while it is on. Whoever may be traced is given a pointer to one, or
// nullptr.
class Trace {
 public:
  // Somebody who has to prepare, or who learns the times of its spans only later.
  class Source {
   public:
    virtual ~Source() = default;
    virtual void trace_begins() = 0;
    virtual void trace_ends() = 0;  // adds what is missing
  };

  static double now();  // seconds

  bool on() const { return on_.load(std::memory_order_relaxed); }
  // From one thread, as are the next two. All ranks end together: what is under way is waited for.
  void begin();
  void end();
  void attach(Source& source) { sources_.push_back(&source); }
  void detach(Source& source) { std::erase(sources_, &source); }

  void add(TraceSpan span);
  std::vector<TraceSpan> take();  // all so far

 private:
  std::atomic<bool> on_ = false;
  std::vector<Source*> sources_;
  std::mutex mutex_;
  std::vector<TraceSpan> spans_;
};

// A span of the host's lane: the life of this object. Nothing without a trace that is on.
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

#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

enum class SpanKind : std::uint8_t {
  Operation,      // a call of a backend: what its device did for it
  Kernel,         // one kernel on a GPU
  Memcpy,         // one copy on a GPU, or by the host
  Memset,         // the same
  Communication,  // a collective or a message
  Runtime,        // a call of the GPU's runtime, on the host
  Phase,          // operations with a common name: a micro-batch, a layer
  Data,           // waits for tokens
  Host,           // other work of the host
};
std::string_view to_string(SpanKind kind);

// What limits an operation.
enum class WorkKind : std::uint8_t { Unknown, Matmul, Attention, Memory };
std::string_view to_string(WorkKind kind);

// A time interval. Times are seconds of the monotonic clock, which all processes of a node share.
struct TraceSpan {
  SpanKind kind = SpanKind::Host;
  std::string lane = {};  // for communication: the group ("shard"), or group and peer ("pp > 1")
  std::string name = {};
  double begin_s = 0;
  double end_s = 0;
  std::int64_t bytes = 0;  // of a message or a copy; of an operation: read and written
  // For communication: identifies the call; the same text on all ranks that take part.
  std::string call = {};

  // Operations are numbered from 1. Of a kernel, copy or call of the runtime: the operation that
  // caused it. 0: none.
  std::int64_t operation = 0;
  // Operations only.
  WorkKind work = WorkKind::Unknown;
  double flops = 0;
  std::string dtype = {};  // of the operands: "bf16"
  std::string phase = {};  // "forward 3", "optimizer"
  std::string layer = {};  // "layer 5", "head"
  // Kernels only.
  std::int64_t blocks = 0;

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

// Adds a span of the host for the lifetime of this object. Does nothing unless `trace` is on.
class HostSpan {
 public:
  HostSpan(Trace* trace, std::string_view name, SpanKind kind = SpanKind::Host);
  ~HostSpan();
  HostSpan(const HostSpan&) = delete;
  HostSpan& operator=(const HostSpan&) = delete;

 private:
  Trace* trace_;
  TraceSpan span_;
};

}  // namespace kintsugi

// Kernels and copies of AMD GPUs, by rocprofiler-sdk of ROCm 6.2 or newer, as declared here and
// opened at run time. It sees a runtime only if it was there first (prepare_gpu_profile). Records
// carry their size; before a profile begins, one memset is recorded to see that its record is
// understood: its size, its kernel's name, its time and its operation.
#include "backend/gpu/activity.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/hip/api.h"
#include "backend/gpu/hip/libraries.h"
#include "backend/gpu/runtime.h"
#include "core/error.h"
#include "core/shared_library.h"

namespace kintsugi {
namespace gpu {
namespace {

// ---- the library's types. Handles are structures of one word, passed like the word itself.

using Handle = std::uint64_t;

constexpr std::uint32_t kTracing = 1;                     // category of a record
constexpr std::uint32_t kCopies = 10, kKernels = 11;      // kinds of records
constexpr int kCodeObjects = 10;                          // kind of callback
constexpr int kKernelSymbol = 2, kOperations = 3;         // its operations: 1 to kOperations
constexpr int kLoading = 1;                               // phase of a callback
constexpr int kLossless = 2;                              // a full buffer: wait
constexpr int kToDevice = 2, kToHost = 3, kOnDevice = 4;  // operations of copies

struct RecordHead {
  std::uint64_t size;
  std::uint32_t kind;
  std::int32_t operation;
  std::uint64_t internal_id, external_id;
  std::uint64_t thread;  // that launched it
  std::uint64_t begin_ns, end_ns;
};
struct KernelRecord {
  RecordHead head;
  struct {
    std::uint64_t size;  // of what is used of 128 bytes
    Handle agent, queue;
    std::uint64_t kernel, dispatch;
    std::uint32_t private_bytes, shared_bytes;
    std::uint32_t block[3], grid[3];  // in threads, both
  } info;
};
struct CopyRecord {
  RecordHead head;
  Handle to, from;
  std::uint64_t bytes;
};
constexpr std::uint64_t kInfoBytes = 72, kMostInfoBytes = 128;
constexpr std::uint64_t kKernelBytes = sizeof(RecordHead) + kMostInfoBytes;
static_assert(sizeof(RecordHead) == 56 && sizeof(KernelRecord) == 56 + kInfoBytes &&
              sizeof(CopyRecord) == 80);

struct RecordHeader {
  std::uint32_t category, kind;
  const void* payload;
};
struct KernelSymbol {
  std::uint64_t size;
  std::uint64_t kernel, code_object;
  const char* name;
};
// Of a callback. Its identifiers had 16 bytes in ROCm 6.2 and have 24 in 7.0: what follows them
// tells which. The record is passed by value, on the stack, so that a short one can be read as a
// long one.
struct CallbackRecord {
  Handle context;
  std::uint64_t thread, internal_id, external_id;
  struct Rest {
    std::int32_t kind, operation, phase, padding;
    const void* payload;
  };
  std::byte rest[sizeof(std::uint64_t) + sizeof(Rest)];

  Rest rest_at(std::size_t offset) const {
    Rest result;
    std::memcpy(&result, rest + offset, sizeof(result));
    return result;
  }
};
static_assert(sizeof(CallbackRecord) == 64);

struct ConfigureResult {
  std::size_t size;
  int (*initialize)(void (*finalize)(), void* data);
  void (*finalize)(void* data);
  void* data;
};
struct ClientId {
  const char* name;
  std::uint32_t handle;
};
using Configure = ConfigureResult*(std::uint32_t version, const char* text, std::uint32_t priority,
                                   ClientId* client);
using RecordsCallback = void(Handle context, Handle buffer, RecordHeader** headers,
                             std::size_t count, void* data, std::uint64_t dropped);
using CodeCallback = void(CallbackRecord record, std::uint64_t* user_data, void* data);

// ---- the profiler of this process. Never destroyed: the library has threads that run to the end.

constexpr double kClockError_s = 0.01;  // far more than between the clocks of GPU and host

class Profiler {
 public:
  static Profiler& instance() {
    static Profiler& one = *std::make_unique<Profiler>().release();
    return one;
  }

  void prepare() noexcept {
    if (std::exchange(asked_, true)) return;
    try {
      find_library();
      check(force_configure_(&configure), "start (is another profiler attached?)");
      if (!ready_ && why_not_.empty()) why_not_ = name() + " did not start";
    } catch (const std::exception& error) {
      why_not_ = error.what();
    }
  }
  void require_ready() const {
    if (!asked_) failure("rocprofiler-sdk was not loaded before HIP started");
    if (!why_not_.empty()) failure("{}", why_not_);
  }

  void start() {
    find_clock();
    check(start_context_(activities_), "record activities");
    began_s_ = Trace::now();
  }
  // The records of finished kernels arrive a little later than the end of the kernels.
  void stop() noexcept {
    constexpr int kQuietRounds = 3, kMostRounds = 500;
    constexpr auto kRound = std::chrono::milliseconds(10);
    stop_context_(activities_);
    std::size_t before = 0;
    for (int round = 0, quiet = 0; round < kMostRounds && quiet < kQuietRounds; ++round) {
      flush_buffer_(buffer_);
      const std::size_t now = records();
      quiet = now == before ? quiet + 1 : 0;
      before = now;
      if (quiet < kQuietRounds) std::this_thread::sleep_for(kRound);
    }
  }
  struct Found {
    std::vector<GpuActivity> activities = {};
    std::int64_t lost = 0;
    std::uint64_t unknown_bytes = 0;  // size of a record that is not understood
  };
  Found take() {
    const double last_s = Trace::now() + kClockError_s, first_s = began_s_ - kClockError_s;
    const std::lock_guard lock(mutex_);
    Found found{.lost = static_cast<std::int64_t>(dropped_ - std::exchange(reported_, dropped_)) +
                        std::exchange(not_understood_, 0),
                .unknown_bytes = std::exchange(unknown_bytes_, 0)};
    for (GpuActivity& activity : found_) {
      const bool plausible = activity.begin_s >= first_s && activity.begin_s <= activity.end_s &&
                             activity.end_s <= last_s;
      if (plausible)
        found.activities.push_back(std::move(activity));
      else
        ++found.lost;
    }
    found_.clear();
    std::sort(found.activities.begin(), found.activities.end(),
              [](const GpuActivity& a, const GpuActivity& b) { return a.begin_s < b.begin_s; });
    return found;
  }

  // A thread without an identifier of its own inherits that of the main thread. So they name the
  // thread, in the bits above kOperationBits.
  void push(std::int64_t operation) noexcept {
    push_(activities_, thread(),
          thread() << kOperationBits | static_cast<std::uint64_t>(operation));
  }
  void pop() noexcept {
    std::uint64_t last = 0;
    pop_(activities_, thread(), &last);
  }
  std::string name() const { return fmt::format("{} ({})", library_->name(), version_); }

 private:
  std::size_t records() noexcept {
    const std::lock_guard lock(mutex_);
    return found_.size();
  }

  static constexpr int kOperationBits = 40;

  void find_library() {
    try {
      library_ = std::make_unique<SharedLibrary>(
          "/", hip::rocm_library({"librocprofiler-sdk.so", "librocprofiler-sdk.so.1",
                                  "librocprofiler-sdk.so.0"}));
    } catch (const Failure& error) {
      failure("{} (ROCm has it since 6.2)", error.what());
    }
    const auto find = [&](auto*& function, const char* name) {
      require(*library_, function, name);
    };
    find(force_configure_, "rocprofiler_force_configure");
    find(create_context_, "rocprofiler_create_context");
    find(start_context_, "rocprofiler_start_context");
    find(stop_context_, "rocprofiler_stop_context");
    find(create_buffer_, "rocprofiler_create_buffer");
    find(flush_buffer_, "rocprofiler_flush_buffer");
    find(trace_to_buffer_, "rocprofiler_configure_buffer_tracing_service");
    find(trace_by_callback_, "rocprofiler_configure_callback_tracing_service");
    find(push_, "rocprofiler_push_external_correlation_id");
    find(pop_, "rocprofiler_pop_external_correlation_id");
    find(thread_id_, "rocprofiler_get_thread_id");
    find(time_, "rocprofiler_get_timestamp");
    find(status_text_, "rocprofiler_get_status_string");
  }
  void check(int status, const char* what) const {
    if (status == 0) return;
    const char* const text = status_text_(status);
    failure("{} cannot {}: {}", name(), what, text == nullptr ? "unknown error" : text);
  }

  static ConfigureResult* configure(std::uint32_t version, const char*, std::uint32_t,
                                    ClientId* client) {
    static ConfigureResult result{sizeof(ConfigureResult), &initialize, nullptr, nullptr};
    instance().version_ =
        fmt::format("version {}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
    client->name = "kintsugi";
    return &result;
  }
  static int initialize(void (*)(), void*) {
    try {
      instance().configure_services();
      return 0;
    } catch (const std::exception& error) {
      instance().why_not_ = error.what();
      return -1;
    }
  }
  // Names are collected from the start: kernels are loaded long before a profile begins.
  void configure_services() {
    constexpr std::size_t kBufferBytes = std::size_t{8} << 20;
    check(create_context_(&names_), "make a context");
    check(trace_by_callback_(names_, kCodeObjects, nullptr, 0, &take_code, nullptr),
          "tell the names of kernels");
    check(start_context_(names_), "tell the names of kernels");
    check(create_context_(&activities_), "make a context");
    check(create_buffer_(activities_, kBufferBytes, kBufferBytes / 2, kLossless, &take_records,
                         nullptr, &buffer_),
          "make a buffer");
    for (const std::uint32_t kind : {kKernels, kCopies})
      check(trace_to_buffer_(activities_, static_cast<int>(kind), nullptr, 0, buffer_),
            "record activities");
    ready_ = true;
  }

  std::uint64_t thread() const noexcept {
    thread_local std::uint64_t own = 0;
    if (own == 0) thread_id_(&own);
    return own;
  }
  // The library's clock, which also runs while the machine sleeps, is another one than Trace's.
  void find_clock() {
    constexpr int kAttempts = 20;
    double shortest_s = 1e30, zero_s = 0;
    for (int i = 0; i < kAttempts; ++i) {
      std::uint64_t time_ns = 0;
      const double before_s = Trace::now();
      check(time_(&time_ns), "tell the time");
      const double after_s = Trace::now();
      if (after_s - before_s >= shortest_s) continue;
      shortest_s = after_s - before_s;
      zero_s = (before_s + after_s) / 2 - static_cast<double>(time_ns) * 1e-9;
    }
    const std::lock_guard lock(mutex_);
    zero_s_ = zero_s;
  }

  static void take_code(CallbackRecord record, std::uint64_t*, void*) {
    for (const std::size_t offset : {std::size_t{0}, sizeof(std::uint64_t)}) {
      const CallbackRecord::Rest rest = record.rest_at(offset);
      if (rest.kind != kCodeObjects || rest.operation < 1 || rest.operation > kOperations) continue;
      if (rest.operation == kKernelSymbol && rest.phase == kLoading)
        instance().add_name(*static_cast<const KernelSymbol*>(rest.payload));
      return;
    }
  }
  void add_name(const KernelSymbol& symbol) {
    if (symbol.size < sizeof(KernelSymbol) || symbol.name == nullptr) return;
    std::string name = symbol.name;
    if (name.ends_with(".kd")) name.resize(name.size() - 3);  // the symbol of its descriptor
    const std::lock_guard lock(mutex_);
    kernel_names_[symbol.kernel] = readable_kernel(name);
  }

  static void take_records(Handle, Handle, RecordHeader** headers, std::size_t count, void*,
                           std::uint64_t dropped) {
    Profiler& self = instance();
    const std::lock_guard lock(self.mutex_);
    self.dropped_ = std::max(self.dropped_, dropped);
    for (std::size_t i = 0; i < count; ++i) {
      const RecordHeader& header = *headers[i];
      if (header.category != kTracing) continue;
      if (header.kind == kKernels) self.add(*static_cast<const KernelRecord*>(header.payload));
      if (header.kind == kCopies) self.add(*static_cast<const CopyRecord*>(header.payload));
    }
  }
  void add(const KernelRecord& record) {
    // A newer release may add to its end.
    if (record.head.size < kKernelBytes || record.info.size < kInfoBytes ||
        record.info.size > kMostInfoBytes)
      return refuse(record.head.size);
    const auto name = kernel_names_.find(record.info.kernel);
    std::int64_t blocks = 1;
    for (int i = 0; i < 3; ++i) {
      const std::int64_t block = std::max(record.info.block[i], 1u);
      blocks *= (record.info.grid[i] + block - 1) / block;
    }
    GpuActivity& activity = add(record.head, record.info.queue);
    activity.blocks = blocks;
    if (name == kernel_names_.end()) return;
    activity.name = name->second;
    // The runtime's own kernels for what a program asked for.
    if (activity.name.starts_with("__amd_rocclr_fill")) activity.kind = SpanKind::Memset;
    if (activity.name.starts_with("__amd_rocclr_copy")) activity.kind = SpanKind::Memcpy;
  }
  void add(const CopyRecord& record) {
    if (record.head.size < sizeof(CopyRecord)) return refuse(record.head.size);
    const int direction = record.head.operation;
    // In lanes of their own: the record names no queue.
    GpuActivity& activity = add(record.head, ~static_cast<Handle>(direction));
    activity.kind = SpanKind::Memcpy;
    activity.name = direction == kToDevice   ? "Memcpy host to device"
                    : direction == kToHost   ? "Memcpy device to host"
                    : direction == kOnDevice ? "Memcpy between devices"
                                             : "Memcpy";
    activity.bytes = static_cast<std::int64_t>(record.bytes);
  }
  GpuActivity& add(const RecordHead& head, Handle queue) {
    constexpr std::uint64_t kMask = (std::uint64_t{1} << kOperationBits) - 1;
    const bool own = head.external_id >> kOperationBits == head.thread;
    const auto lane = static_cast<std::uint32_t>(lanes_.size() + 1);
    return found_.emplace_back(
        GpuActivity{.begin_s = zero_s_ + static_cast<double>(head.begin_ns) * 1e-9,
                    .end_s = zero_s_ + static_cast<double>(head.end_ns) * 1e-9,
                    .lane = lanes_.try_emplace(queue, lane).first->second,
                    .operation = own ? static_cast<std::int64_t>(head.external_id & kMask) : 0});
  }
  void refuse(std::uint64_t bytes) {
    unknown_bytes_ = bytes;
    ++not_understood_;
  }

  std::unique_ptr<SharedLibrary> library_;
  int (*force_configure_)(Configure*) = nullptr;
  int (*create_context_)(Handle*) = nullptr;
  int (*start_context_)(Handle) = nullptr;
  int (*stop_context_)(Handle) = nullptr;
  int (*create_buffer_)(Handle, std::size_t, std::size_t, int, RecordsCallback*, void*,
                        Handle*) = nullptr;
  int (*flush_buffer_)(Handle) = nullptr;
  int (*trace_to_buffer_)(Handle, int, const std::int32_t*, std::size_t, Handle) = nullptr;
  int (*trace_by_callback_)(Handle, int, const std::int32_t*, std::size_t, CodeCallback*,
                            void*) = nullptr;
  int (*push_)(Handle, std::uint64_t, std::uint64_t) = nullptr;
  int (*pop_)(Handle, std::uint64_t, std::uint64_t*) = nullptr;
  int (*thread_id_)(std::uint64_t*) = nullptr;
  int (*time_)(std::uint64_t*) = nullptr;
  const char* (*status_text_)(int) = nullptr;

  bool asked_ = false, ready_ = false;
  std::string version_ = "version unknown", why_not_;
  Handle names_ = 0, activities_ = 0, buffer_ = 0;
  double began_s_ = 0;

  std::mutex mutex_;  // the library's threads add to these
  std::unordered_map<std::uint64_t, std::string> kernel_names_;
  std::unordered_map<Handle, std::uint32_t> lanes_;
  std::vector<GpuActivity> found_;
  double zero_s_ = 0;
  std::uint64_t dropped_ = 0, reported_ = 0;
  std::int64_t not_understood_ = 0;
  std::uint64_t unknown_bytes_ = 0;
};

// ---- the recorder

std::atomic<bool> is_recording = false;

class RocprofilerRecorder final : public ActivityRecorder {
 public:
  RocprofilerRecorder() { profiler_.require_ready(); }
  ~RocprofilerRecorder() override {
    if (recording_) stop();
  }

  void begin() override {
    if (is_recording.exchange(true))
      failure("{} already records for another backend", profiler_.name());
    recording_ = true;
    try {
      profiler_.start();
      memset_as_operation();
      profiler_.stop();
      check_memset(profiler_.take());
      profiler_.start();
    } catch (...) {
      stop();
      profiler_.take();
      throw;
    }
  }
  std::vector<GpuActivity> end(std::int64_t& lost) override {
    stop();
    Profiler::Found found = profiler_.take();
    lost = found.lost;
    for (GpuActivity& activity : found.activities)
      if (activity.name.empty()) activity.name = "kernel";
    return std::move(found.activities);
  }
  void push(std::int64_t operation) noexcept override { profiler_.push(operation); }
  void pop() noexcept override { profiler_.pop(); }

 private:
  static constexpr std::int64_t kOperation = 77;  // any

  void stop() noexcept {
    profiler_.stop();
    recording_ = false;
    is_recording = false;
  }
  // The runtime sets device memory by a kernel of its own.
  void memset_as_operation() {
    constexpr std::size_t kBytes = 4096;
    const std::unique_ptr<void, void (*)(void*)> memory(try_allocate(kBytes), release);
    if (!memory) failure("no device memory is left");
    const std::unique_ptr<std::remove_pointer_t<Stream>, void (*)(Stream)> stream(create_stream(),
                                                                                  destroy);
    profiler_.push(kOperation);
    set_bytes(memory.get(), 0, kBytes, stream.get());
    profiler_.pop();
    synchronize(stream.get());
  }
  void check_memset(const Profiler::Found& found) const {
    const std::string name = profiler_.name();
    const auto own = std::find_if(found.activities.begin(), found.activities.end(),
                                  [](const GpuActivity& a) { return a.operation == kOperation; });
    if (own != found.activities.end()) {
      if (own->name.empty()) failure("{} has no names of kernels", name);
      return;
    }
    if (found.unknown_bytes > 0)
      failure("{} has records of {} bytes, but {} were expected", name, found.unknown_bytes,
              kKernelBytes);
    if (found.lost > 0) failure("the times of {} are of another clock than it says", name);
    if (!found.activities.empty()) failure("{} does not tell which thread launches a kernel", name);
    failure("{} sees no kernels: HIP started before it (does MPI use the GPUs?)", name);
  }

  Profiler& profiler_ = Profiler::instance();
  bool recording_ = false;
};

}  // namespace

std::unique_ptr<ActivityRecorder> make_activity_recorder() {
  return std::make_unique<RocprofilerRecorder>();
}

}  // namespace gpu

void prepare_gpu_profile() { gpu::Profiler::instance().prepare(); }

}  // namespace kintsugi

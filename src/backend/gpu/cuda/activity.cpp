#include "backend/gpu/activity.h"

#include <cupti.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <unordered_map>

#include "backend/gpu/common.h"
#include "backend/gpu/runtime.h"
#include "core/error.h"
#include "core/shared_library.h"

namespace kintsugi::gpu {
namespace {

// The records of this version of CUPTI; older ones end earlier.
#if CUPTI_API_VERSION >= 130000
using KernelRecord = CUpti_ActivityKernel10;
using MemcpyRecord = CUpti_ActivityMemcpy6;
#else
using KernelRecord = CUpti_ActivityKernel9;
using MemcpyRecord = CUpti_ActivityMemcpy5;
#endif
using MemsetRecord = CUpti_ActivityMemset4;

constexpr std::size_t kBufferBytes = std::size_t{4} << 20, kAlignment = 8;
// Shorter calls are questions (cudaGetDevice), of which libraries ask several with every launch.
constexpr std::uint64_t kShortCall_ns = 1000;
constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                         CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMCPY2,
                                         CUPTI_ACTIVITY_KIND_MEMSET,
                                         CUPTI_ACTIVITY_KIND_RUNTIME,
                                         CUPTI_ACTIVITY_KIND_DRIVER,
                                         CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION};

// The functions of the library. It is never unloaded: it has threads of its own.
struct Cupti {
  Cupti()
      : library("/", {.files = {"libcupti.so." + std::to_string(CUDART_VERSION / 1000)},
                      .folders = {"usr/local/cuda/lib64", "usr/local/cuda/extras/CUPTI/lib64"}}) {
    find(register_callbacks, "cuptiActivityRegisterCallbacks");
    find(register_clock, "cuptiActivityRegisterTimestampCallback");
    find(enable, "cuptiActivityEnable");
    find(disable, "cuptiActivityDisable");
    find(flush, "cuptiActivityFlushAll");
    find(next_record, "cuptiActivityGetNextRecord");
    find(dropped, "cuptiActivityGetNumDroppedRecords");
    find(push, "cuptiActivityPushExternalCorrelationId");
    find(pop, "cuptiActivityPopExternalCorrelationId");
    find(call_name, "cuptiGetCallbackName");
    find(error_text, "cuptiGetResultString");
  }
  template <class Function>
  void find(Function*& function, const char* name) {
    function = library.find<Function>(name);
    if (function == nullptr) failure("{} has no {}", library.name(), name);
  }
  void check(CUptiResult result, const char* what) const {
    if (result == CUPTI_SUCCESS) return;
    const char* text = nullptr;
    error_text(result, &text);
    failure("CUPTI cannot {}: {}", what, text == nullptr ? "unknown error" : text);
  }

  SharedLibrary library;
  decltype(cuptiActivityRegisterCallbacks)* register_callbacks = nullptr;
  decltype(cuptiActivityRegisterTimestampCallback)* register_clock = nullptr;
  decltype(cuptiActivityEnable)* enable = nullptr;
  decltype(cuptiActivityDisable)* disable = nullptr;
  decltype(cuptiActivityFlushAll)* flush = nullptr;
  decltype(cuptiActivityGetNextRecord)* next_record = nullptr;
  decltype(cuptiActivityGetNumDroppedRecords)* dropped = nullptr;
  decltype(cuptiActivityPushExternalCorrelationId)* push = nullptr;
  decltype(cuptiActivityPopExternalCorrelationId)* pop = nullptr;
  decltype(cuptiGetCallbackName)* call_name = nullptr;
  decltype(cuptiGetResultString)* error_text = nullptr;
};

Cupti& cupti() {
  static Cupti& library = *std::make_unique<Cupti>().release();  // tried again after a failure
  return library;
}

struct FreeBuffer {
  void operator()(std::uint8_t* buffer) const { std::free(buffer); }
};
struct FilledBuffer {
  std::unique_ptr<std::uint8_t, FreeBuffer> data;
  std::size_t bytes = 0;
};

// CUPTI's callbacks know no object. Buffers are read after the recording, so that it is disturbed
// little.
std::mutex buffers_mutex;
std::vector<FilledBuffer> filled_buffers;
std::int64_t dropped_records = 0;
std::atomic<bool> is_recording = false;

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kAlignment, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;  // as many as fit
}

void CUPTIAPI take_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer,
                          std::size_t, std::size_t valid) {
  FilledBuffer filled{std::unique_ptr<std::uint8_t, FreeBuffer>(buffer), valid};
  std::size_t lost = 0;
  cupti().dropped(context, stream, &lost);
  const std::lock_guard lock(buffers_mutex);
  dropped_records += static_cast<std::int64_t>(lost);
  if (valid > 0) filled_buffers.push_back(std::move(filled));
}

// Trace::now() in nanoseconds.
std::uint64_t steady_nanoseconds() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

const char* direction_of(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "Memcpy host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "Memcpy device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "Memcpy device to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return "Memcpy between devices";
    default:
      return "Memcpy";
  }
}

// Collects activities from buffers. The operation of an activity is in a record of its own, which
// may come later.
class ActivityReader {
 public:
  void read(const FilledBuffer& buffer) {
    CUpti_Activity* record = nullptr;
    while (cupti().next_record(buffer.data.get(), buffer.bytes, &record) == CUPTI_SUCCESS)
      add(*record);
  }
  std::vector<GpuActivity> take() {
    for (Entry& entry : entries_)
      if (const auto found = operations_.find(entry.correlation); found != operations_.end())
        entry.activity.operation = found->second;
    std::vector<GpuActivity> activities;
    for (Entry& entry : entries_)
      if (entry.activity.begin_s > 0 && entry.activity.begin_s <= entry.activity.end_s)
        activities.push_back(std::move(entry.activity));  // the others have no times
    std::sort(activities.begin(), activities.end(),
              [](const GpuActivity& a, const GpuActivity& b) { return a.begin_s < b.begin_s; });
    return activities;
  }

 private:
  struct Entry {
    GpuActivity activity;
    std::uint32_t correlation;
  };

  template <class Record>
  const Record& as(const CUpti_Activity& record) {
    return reinterpret_cast<const Record&>(record);
  }
  template <class Record>
  GpuActivity& add_entry(SpanKind kind, const Record& record, std::uint32_t lane) {
    entries_.push_back({{.kind = kind,
                         .begin_s = static_cast<double>(record.start) * 1e-9,
                         .end_s = static_cast<double>(record.end) * 1e-9,
                         .lane = lane},
                        record.correlationId});
    return entries_.back().activity;
  }
  void add(const CUpti_Activity& record) {
    switch (record.kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      case CUPTI_ACTIVITY_KIND_KERNEL: {
        const auto& kernel = as<KernelRecord>(record);
        GpuActivity& activity = add_entry(SpanKind::Kernel, kernel, kernel.streamId);
        activity.name = kernel_name(kernel.name);
        activity.blocks = std::int64_t{kernel.gridX} * kernel.gridY * kernel.gridZ;
        return;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto& copy = as<MemcpyRecord>(record);
        GpuActivity& activity = add_entry(SpanKind::Memcpy, copy, copy.streamId);
        activity.name = direction_of(copy.copyKind);
        activity.bytes = static_cast<std::int64_t>(copy.bytes);
        return;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto& set = as<MemsetRecord>(record);
        GpuActivity& activity = add_entry(SpanKind::Memset, set, set.streamId);
        activity.name = "Memset";
        activity.bytes = static_cast<std::int64_t>(set.bytes);
        return;
      }
      case CUPTI_ACTIVITY_KIND_RUNTIME:
      case CUPTI_ACTIVITY_KIND_DRIVER: {
        const auto& call = as<CUpti_ActivityAPI>(record);
        if (call.end - call.start < kShortCall_ns) return;
        add_entry(SpanKind::Runtime, call, call.threadId).name = call_name(record.kind, call.cbid);
        return;
      }
      case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const auto& named = as<CUpti_ActivityExternalCorrelation>(record);
        operations_[named.correlationId] = static_cast<std::int64_t>(named.externalId);
        return;
      }
      default:
        return;
    }
  }
  const std::string& kernel_name(const char* name) {
    std::string& readable = kernel_names_[name == nullptr ? "" : name];
    if (readable.empty()) readable = readable_kernel(name == nullptr ? "kernel" : name);
    return readable;
  }
  const std::string& call_name(CUpti_ActivityKind kind, CUpti_CallbackId call) {
    const bool runtime = kind == CUPTI_ACTIVITY_KIND_RUNTIME;
    std::string& name = call_names_[(std::uint64_t{runtime} << 32) | call];
    if (!name.empty()) return name;
    const char* text = nullptr;
    const auto domain = runtime ? CUPTI_CB_DOMAIN_RUNTIME_API : CUPTI_CB_DOMAIN_DRIVER_API;
    if (cupti().call_name(domain, call, &text) == CUPTI_SUCCESS && text != nullptr) name = text;
    // "cudaLaunchKernel_v7000" is the call of that version.
    if (const std::size_t version = name.find("_v"); version != name.npos) name.resize(version);
    if (name.empty()) name = "call " + std::to_string(call);
    return name;
  }

  std::vector<Entry> entries_;
  std::unordered_map<std::uint32_t, std::int64_t> operations_;  // by correlation
  std::unordered_map<std::string, std::string> kernel_names_;
  std::unordered_map<std::uint64_t, std::string> call_names_;
};

class CuptiRecorder final : public ActivityRecorder {
 public:
  CuptiRecorder() : cupti_(cupti()) {}
  ~CuptiRecorder() override {
    if (recording_) stop();
  }

  void begin() override {
    if (is_recording.exchange(true)) failure("CUPTI already records for another backend");
    recording_ = true;
    try {
      cupti_.check(cupti_.register_clock(steady_nanoseconds), "use this program's clock");
      cupti_.check(cupti_.register_callbacks(give_buffer, take_buffer), "take buffers");
      for (const CUpti_ActivityKind kind : kKinds)
        cupti_.check(cupti_.enable(kind), "record activities (is another profiler attached?)");
      // The first call after this one prepares CUPTI: not in a step.
      synchronize_device();
    } catch (...) {
      stop();
      throw;
    }
  }
  std::vector<GpuActivity> end(std::int64_t& lost) override {
    stop();
    ActivityReader reader;
    const std::lock_guard lock(buffers_mutex);
    for (const FilledBuffer& buffer : filled_buffers) reader.read(buffer);
    filled_buffers.clear();
    lost = std::exchange(dropped_records, 0);
    return reader.take();
  }
  void push(std::int64_t operation) noexcept override {
    cupti_.push(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, static_cast<std::uint64_t>(operation));
  }
  void pop() noexcept override {
    std::uint64_t last = 0;
    cupti_.pop(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &last);
  }

 private:
  void stop() noexcept {
    for (const CUpti_ActivityKind kind : kKinds) cupti_.disable(kind);
    cupti_.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    recording_ = false;
    is_recording = false;
  }

  Cupti& cupti_;
  bool recording_ = false;
};

}  // namespace

std::unique_ptr<ActivityRecorder> make_activity_recorder() {
  return std::make_unique<CuptiRecorder>();
}

}  // namespace kintsugi::gpu
